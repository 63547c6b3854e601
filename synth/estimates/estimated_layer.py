"""The estimated profile of a layer: its operations as times, and its tensors as bytes."""

from collections import Counter
from dataclasses import dataclass, field, replace

from synth.costs.recomputed_layers import recomputed
from synth.estimates.data_parallel import DataParallelExchanges
from synth.estimates.device import Device
from synth.estimates.factors import Factors
from synth.estimates.layer_ops import LayerOps
from synth.estimates.layout import Layout, Recompute, Sharding, Software
from synth.estimates.memory import ActivationBytes, MemoryOf, States
from synth.estimates.model_shape import ModelShape
from synth.estimates.op_times import LAUNCH_US, Parts, parts_of
from synth.estimates.ops import Role
from synth.estimates.pairs import with_pair
from synth.op_kinds import OpKind
from synth.profile.layer_profile import LayerProfile, Timing
from synth.profile.optimizer import OptimizerSpec

DEFAULT_OPTIMIZER = OptimizerSpec.parse("adamw+master+float32-gradients")

# Layers that no policy recomputes, and the policies of a part of a layer.
_ENDS = ("embedding", "head")
_POLICIES = (Recompute.SELECTIVE, Recompute.OPS)


@dataclass(frozen=True)
class EstimatedLayer:
    """A layer's profile, the parts of its times before the factors, and `launch_bound` passes."""

    layer: LayerProfile
    parts: dict[Role, Parts]
    launch_bound: tuple[OpKind, ...]


@dataclass(frozen=True)
class LayerEstimator:
    """The inputs of an estimate.

    Attributes:
        device: the device of every rank.
        layout: the sizes of groups and micro-batches.
        software: the training program.
        factors: what times are multiplied by.
        optimizer: the update rule, and the dtypes of its state.
    """

    shape: ModelShape
    device: Device
    layout: Layout
    software: Software = field(default_factory=Software)
    factors: Factors = field(default_factory=Factors)
    optimizer: OptimizerSpec = DEFAULT_OPTIMIZER

    def listed(self) -> list[tuple[str, str]]:
        """The names of the layers, with the kinds that they share."""
        blocks = [
            (f"block.{number}", "block" if self.shape.is_dense(number) else "moe_block")
            for number in range(self.shape.layers)
        ]
        mtp = [(f"mtp.{number}", "mtp") for number in range(self.shape.mtp_layers)]
        return [("embedding", "embedding"), *blocks, *mtp, ("head", "head")]

    def with_variants(self, kind: str, layer: LayerProfile) -> LayerProfile:
        """Add the costs under the policies that keep less of a decoder layer."""
        if kind in _ENDS or self.layout.recompute is not Recompute.NONE:
            return layer
        found = {}
        for policy in _POLICIES:
            other = replace(self, layout=self.layout.replace(recompute=policy)).part(kind).layer
            if other.saved_bytes < layer.saved_bytes:
                found[policy.value] = other.as_variant
        return layer.replace(variants=found)

    @property
    def _memory(self) -> MemoryOf:
        return MemoryOf(self.shape, self.layout, self.software, self.optimizer)

    @property
    def exchanges(self) -> DataParallelExchanges:
        """The exchanges of gradients and parameters between data-parallel ranks."""
        gradient_bytes = self.optimizer.gradient_bytes(1, 2)
        return DataParallelExchanges(self.device, self.layout, self.factors, gradient_bytes)

    def reduction_us(self) -> float:
        """The reduction of gradients behind the last backward of all layers, as of the profile."""
        numbers = Counter(kind for _, kind in self.listed())
        each = sum(
            number * self.reduction_us_of(kind, self.states(kind))
            for kind, number in numbers.items()
        )
        again = self.reduction_us_of("embedding", self.tied_states) if self.shape.tied else 0.0
        return each - again

    def states(self, kind: str) -> States:
        """The states of a kind of layer on a rank."""
        return self._memory.of(kind)[0]

    @property
    def boundary_bytes(self) -> int:
        """The output of a layer with a micro-batch, and so the input of the next one."""
        return self._memory.boundary

    def part(self, kind: str) -> EstimatedLayer:
        states, held = self._memory.of(kind)
        ops = LayerOps(self.shape, self.layout, self.software, self.device.ranks_per_node)
        is_end = kind in _ENDS
        work = ops.of(kind)
        boundary = self.boundary_bytes
        parts = {role: parts_of(work.by_role[role], self.device, self.software) for role in Role}
        repeated = () if is_end else ops.recomputed(kind, work)
        again = parts_of(repeated, self.device, self.software)
        is_full = self.layout.recompute is Recompute.FULL and not is_end
        if not is_full:
            parts[Role.B] += again
        least = self._host_us(kind) / 3
        launched = tuple(OpKind(role) for role in Role if self.factors.us(parts[role]) < least)
        times = self._passes_us(parts, least) | {OpKind.STEP: self.step_us(states)}
        if self.software.stops_early and kind == "block":
            whole_again = parts_of(ops.forward_again(work), self.device, self.software)
            times[OpKind.R] = self.factors.us(whole_again)
        whole, gradient = self._unsharded(states)
        passed = 0 if kind == "head" else boundary
        back = 0 if kind == "embedding" else boundary
        layer = LayerProfile(
            time_us={op: Timing.exactly(round(us, 3)) for op, us in times.items()},
            parameter_bytes=states.parameter_bytes,
            gradient_bytes=states.gradient_bytes,
            optimizer_bytes=states.optimizer_bytes + states.cast_bytes,
            output_bytes=passed,
            saved_bytes=round(held.saved),
            saved_w_bytes=round(held.saved_for_w),
            rise_bytes={
                OpKind.F: round(held.saved + held.forward + whole) + passed,
                OpKind.B: round(held.backward + whole) + back,
                OpKind.W: round(max(held.weight, gradient)),
                OpKind.BW: self._rise_of_backward(held, states) + back,
                OpKind.STEP: 0,
            },
            input_until=OpKind.F if kind == "embedding" else OpKind.B,
            gradient_until=OpKind.W,
            forward_flops=round(work.flops(Role.F)),
            reduce_us=round(self.reduction_us_of(kind, states), 3),
        )
        if is_full:
            layer = recomputed(layer)
            parts[Role.B] += again
        if self.layout.sharding is Sharding.FSDP:
            layer = self.exchanges.beside_compute(layer, states)
        if not is_full:
            layer = with_pair(layer, work, self.device, self.factors, self._host_us(kind))
        return EstimatedLayer(layer, parts, launched)

    def reduction_us_of(self, kind: str, states: States) -> float:
        """The part of a layer in the reduction of gradients behind the last backward of a stage.

        All layers of a kind share the latency of one collective. FSDP's exchanges are beside each
        backward, and programs without overlap reduce outside of the pipeline.
        """
        if self.layout.sharding is Sharding.FSDP or not self.software.overlaps_gradients:
            return 0.0
        number = sum(each == kind for _, each in self.listed())
        alike = [states] * number
        return self.exchanges.reduce_us(alike) / number

    def _passes_us(self, parts: dict[Role, Parts], least: float) -> dict[OpKind, float]:
        """The times of F, B, W and BW; of F, B and W at least what the host takes to launch them.

        These have about as many kernels each. Where the host waits for the device in every layer,
        a part of the shorter of the two times adds to the longer one.
        """
        forward, backward, weight = (self.factors.us(parts[role]) for role in Role)
        shown = self.software.shown_launches

        def together(kernels: float, launches: float) -> float:
            return max(kernels, launches) + shown * min(kernels, launches)

        return {
            OpKind.F: together(forward, least),
            OpKind.B: together(backward, least),
            OpKind.W: together(weight, least),
            OpKind.BW: together(backward + weight, 2 * least),
        }

    def _host_us(self, kind: str) -> float:
        """The time in which the host launches the kernels of F, B and W; 0 without experts."""
        return self.software.host_us if kind in ("moe_block", "mtp") else 0.0

    def _unsharded(self, states: States) -> tuple[float, float]:
        """Bytes that FSDP gathers for a layer and for the next one, and of a whole gradient."""
        if self.layout.sharding is not Sharding.FSDP:
            return 0.0, 0.0
        kind = "block" if self.shape.experts is None else "moe_block"
        return states.whole_bytes + self.states(kind).whole_bytes, states.whole_bytes

    def _rise_of_backward(self, held: ActivationBytes, states: States) -> int:
        whole, gradient = self._unsharded(states)
        if self.layout.sharding is Sharding.FSDP:
            return round(held.both + whole + gradient)
        return round(max(held.both, held.weight))

    def step_us(self, states: States) -> float:
        """The time of the optimizer, which is bound by memory.

        State is read and written, gradients are read for their norm and for the update, and
        parameters are written, each of the rank's share; then its gradients are set to zero.
        """
        whole_gradients = self.optimizer.gradient_bytes(round(states.shared + states.experts), 2)
        moved = (
            2 * states.optimizer_bytes
            + states.kept * (2 * whole_gradients + states.whole_bytes)
            + states.gradient_bytes
        )
        rate = self.device.memory_bytes_per_s * self.device.memory_efficiency
        return self.factors.values[1] * (moved / rate * 1e6 + LAUNCH_US)

    @property
    def tied_states(self) -> States:
        """The states of a matrix that the embedding and the head share."""
        return self._memory.states(self.shape.vocab * self.shape.hidden / self.layout.tensor)
