"""The estimated profile: the parts of a model as layers of an ordinary profile."""

import datetime
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache

from pydantic import ValidationError

from synth.costs.recomputed_layers import recomputed
from synth.errors import SynthError
from synth.estimates.calibration import factors_of
from synth.estimates.collectives import neighbour_link
from synth.estimates.data_parallel import DataParallelExchanges
from synth.estimates.device import Device
from synth.estimates.factors import KINDS, SCATTER_OF_EXPERTS, SOFTWARE, Factors, software_of
from synth.estimates.layer_ops import LayerOps
from synth.estimates.layout import Layout, Precision, Recompute, Sharding, Software
from synth.estimates.memory import ActivationBytes, MemoryOf, States
from synth.estimates.model_shape import ModelShape
from synth.estimates.op_times import LAUNCH_US, Parts, parts_of
from synth.estimates.ops import Role
from synth.estimates.pairs import with_pair
from synth.op_kinds import OpKind
from synth.profile import Profile, Provenance
from synth.profile.estimate import ESTIMATED, Estimate, Factor
from synth.profile.layer_profile import Layer, LayerProfile, Timing
from synth.profile.links import Links, NodeLink
from synth.profile.mesh import DeviceGroup
from synth.profile.optimizer import OptimizerSpec
from synth.profile.tied_parameters import TiedParameters
from synth.profile.workload import Workload
from synth.records.record import describe

# The training program of named profiles.
NAMED_SOFTWARE = "megatron"

DEFAULT_OPTIMIZER = OptimizerSpec.parse("adamw+master+float32-gradients")

# Of bytes: the largest error of the published peaks (`python -m benchmarks.estimates`), and of
# other kinds of layouts, of which none is published, a guess.
_MEMORY_SHOWN, _MEMORY_OTHERWISE = 0.08, 0.25

# Layers that no policy recomputes, and the policies of a part of a layer.
_ENDS = ("embedding", "head")
_POLICIES = (Recompute.SELECTIVE, Recompute.OPS)


@dataclass(frozen=True)
class Estimator:
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

    def profile(
        self, name: str | None = None, command: str | None = None, *, variants: bool = False
    ) -> Profile:
        """Compute the profile.

        Args:
            name: of the profile; None: of model, device and tensor parallelism.
            command: what it was made with, for display.
            variants: with the costs of decoder layers under each policy of recomputation, unless
                the layout recomputes already.

        Raises:
            SynthError: the layout does not suit the model or the device.
        """
        self.layout.check(self.shape)
        self.device.peak(self.layout.precision.dtype)
        try:
            return self._profile(name, command, variants)
        except ValidationError as error:
            raise SynthError(
                f"the estimate of {self.shape.name} is out of range; give smaller sizes:\n"
                f"{describe(error)}"
            ) from None

    def _profile(self, name: str | None, command: str | None, variants: bool) -> Profile:
        parts = self._parts()
        layers = _layers(tuple(self._listed()))
        totals = Parts()
        for layer in layers:
            for role in Role:
                totals += parts[layer.profile].parts[role]
        return Profile(
            name=name or self.name,
            provenance=Provenance(
                source="estimated by synth",
                device=f"{self.device.title}{ESTIMATED}",
                date=datetime.date.today().isoformat(),
                command=command,
                notes="; ".join(f"{what}: {where}" for what, where in self.device.sources.items())
                or None,
                estimate=self._estimate(totals, parts),
            ),
            workload=self._workload(),
            capacity_bytes=self.device.memory_bytes,
            peak_flops_per_s=self.device.peak(self.layout.precision.dtype),
            links=self.links(),
            layer_profiles={
                kind: self._with_variants(kind, part.layer) if variants else part.layer
                for kind, part in parts.items()
            },
            layers=layers,
            tied_parameters=self._tied(parts),
        )

    @property
    def name(self) -> str:
        """`llama3-70b-h100-tp8-s8192`, as of the named profile of the same sizes.

        What named profiles cannot have follows (`-dp64-full`), so that it is no name of one.
        """
        layout = self.layout
        sizes = (("tp", layout.tensor), ("cp", layout.context), ("ep", layout.expert))
        groups = "".join(f"-{word}{size}" for word, size in sizes if size > 1 or word == "tp")
        narrow = "" if layout.precision.value == "bf16" else f"-{layout.precision.value}"
        batch = f"-b{layout.micro_batch_size}" if layout.micro_batch_size > 1 else ""
        lengths = f"-s{layout.seq_len}{batch}"
        sizes_name = f"{self.shape.name}-{self.device.name}{groups}{narrow}{lengths}"
        return sizes_name + "".join(f"-{word}" for word in self._unusual())

    def _unusual(self) -> Iterator[str]:
        """Words for what is otherwise than in a named profile."""
        layout = self.layout
        if layout.expert_tensor > 1:
            yield f"etp{layout.expert_tensor}"
        if layout.data != max(1, layout.expert // (layout.tensor * layout.context)):
            yield f"dp{layout.data}"
        if layout.tensor > 1 and not layout.sequence:
            yield "nosp"
        if layout.sharding is not Sharding.ZERO1:
            yield {Sharding.NONE: "unsharded", Sharding.FSDP: "fsdp"}[layout.sharding]
        if layout.recompute is not Recompute.NONE:
            yield layout.recompute.value
        usual = software_of(NAMED_SOFTWARE)
        if self.software != usual:
            known = (name for name, each in SOFTWARE.items() if each == self.software)
            yield next(known, "software")
        if self.factors != factors_of(None, self.device, NAMED_SOFTWARE) and self.software == usual:
            yield "uncalibrated" if self.factors.calibration is None else "calibrated"
        if self.optimizer != DEFAULT_OPTIMIZER:
            yield str(self.optimizer)

    def _workload(self) -> Workload:
        blocks = ("block.*",) if self.layout.recompute is Recompute.FULL else None
        return Workload(
            model=self.shape.name,
            micro_batch_size=self.layout.micro_batch_size,
            sequence_length=self.layout.seq_len,
            dtype="bfloat16",
            recomputed_layers=blocks,
            optimizer=self.optimizer,
            group=self._group,
            runnable=False,
        )

    @property
    def _group(self) -> DeviceGroup | None:
        """The devices that a rank is; None: one, beside no other pipeline."""
        layout = self.layout
        sizes = (layout.tensor, layout.context, layout.expert, layout.data)
        if max(*sizes, layout.expert_tensor) == 1:
            return None
        tensor, context, expert, data = sizes
        return DeviceGroup(
            tensor=tensor,
            sequence=layout.sequence and tensor > 1,
            context=context,
            expert=expert,
            expert_tensor=None if self.shape.experts is None else layout.expert_tensor,
            data=data,
        )

    def _estimate(self, totals: Parts, parts: dict[str, "_Part"]) -> Estimate:
        shares = (totals.matmul_us, totals.memory_us, totals.communication_us)
        times = [value * us for value, us in zip(self.factors.values, shares, strict=True)]
        whole = sum(times) or 1.0
        least = 0.0 if self.shape.experts is None else SCATTER_OF_EXPERTS
        listed = zip(KINDS, self.factors.values, self.factors.deviations, times, strict=True)
        return Estimate(
            factors={
                kind: Factor(
                    value=round(value, 6), uncertainty=round(sigma, 4), share=round(us / whole, 4)
                )
                for kind, value, sigma, us in listed
            },
            scatter=round(max(self.factors.scatter, least), 4),
            memory_uncertainty=_MEMORY_SHOWN if self._is_memory_shown else _MEMORY_OTHERWISE,
            calibration=self.factors.calibration,
            layout=", ".join(
                f"{name} {value}" for name, value in self.layout.model_dump(mode="json").items()
            ),
            launch_bound={
                kind: part.launch_bound for kind, part in parts.items() if part.launch_bound
            },
        )

    @property
    def _is_memory_shown(self) -> bool:
        """True of the kinds of layouts of which published peaks of allocated memory are known."""
        layout = self.layout
        return (
            layout.sharding is not Sharding.FSDP
            and layout.recompute in (Recompute.NONE, Recompute.SELECTIVE)
            and layout.precision is Precision.BF16
            and not self.shape.mtp_layers
        )

    def _listed(self) -> list[tuple[str, str]]:
        """The names of the layers, with the kinds that they share."""
        blocks = [
            (f"block.{number}", "block" if self.shape.is_dense(number) else "moe_block")
            for number in range(self.shape.layers)
        ]
        mtp = [(f"mtp.{number}", "mtp") for number in range(self.shape.mtp_layers)]
        return [("embedding", "embedding"), *blocks, *mtp, ("head", "head")]

    def _parts(self) -> dict[str, "_Part"]:
        """Each kind of layer that the model has."""
        return {
            kind: self._part(kind) for kind in dict.fromkeys(kind for _, kind in self._listed())
        }

    def _with_variants(self, kind: str, layer: LayerProfile) -> LayerProfile:
        """Add the costs under the policies that keep less of a decoder layer."""
        if kind in _ENDS or self.layout.recompute is not Recompute.NONE:
            return layer
        found = {}
        for policy in _POLICIES:
            other = replace(self, layout=self.layout.replace(recompute=policy))._part(kind).layer
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
        numbers = Counter(kind for _, kind in self._listed())
        each = sum(
            number * self._reduction_us(kind, self.states(kind)) for kind, number in numbers.items()
        )
        again = self._reduction_us("embedding", self._tied_states) if self.shape.tied else 0.0
        return each - again

    def states(self, kind: str) -> States:
        """The states of a kind of layer on a rank."""
        return self._memory.of(kind)[0]

    @property
    def boundary_bytes(self) -> int:
        """The output of a layer with a micro-batch, and so the input of the next one."""
        return self._memory.boundary

    def _part(self, kind: str) -> "_Part":
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
        times = self._passes_us(parts, least) | {OpKind.STEP: self._step_us(states)}
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
            reduce_us=round(self._reduction_us(kind, states), 3),
        )
        if is_full:
            layer = recomputed(layer)
            parts[Role.B] += again
        if self.layout.sharding is Sharding.FSDP:
            layer = self.exchanges.beside_compute(layer, states)
        if not is_full:
            layer = with_pair(layer, work, self.device, self.factors, self._host_us(kind))
        return _Part(layer, parts, launched)

    def _reduction_us(self, kind: str, states: States) -> float:
        """The part of a layer in the reduction of gradients behind the last backward of a stage.

        All layers of a kind share the latency of one collective. FSDP's exchanges are beside each
        backward, and programs without overlap reduce outside of the pipeline.
        """
        if self.layout.sharding is Sharding.FSDP or not self.software.overlaps_gradients:
            return 0.0
        number = sum(each == kind for _, each in self._listed())
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

    def _step_us(self, states: States) -> float:
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

    def links(self) -> Links:
        """The links between neighbours of the pipeline, whose ranks are the farthest apart.

        As in Megatron-LM, ranks are counted along tensor, context, data, and then the pipeline.
        Where nodes end between the devices of a rank, some of its links are between nodes.
        """
        device, layout = self.device, self.layout
        factor = self.factors.values[2]
        near = neighbour_link(device, 1, factor)
        far = neighbour_link(device, 2, factor)
        apart = layout.group_size
        stages, rest = divmod(device.ranks_per_node, apart)
        if stages < 2 or rest:
            return Links(default=far)
        return Links(default=near, nodes=(NodeLink(ranks_per_node=stages, **dict(far)),))

    @property
    def _tied_states(self) -> States:
        """The states of a matrix that the embedding and the head share."""
        return self._memory.states(self.shape.vocab * self.shape.hidden / self.layout.tensor)

    def _tied(self, parts: dict[str, "_Part"]) -> tuple[TiedParameters, ...] | None:
        if not self.shape.tied:
            return None
        own = self._tied_states
        return (
            TiedParameters(
                layers=("embedding", "head"),
                parameter_bytes=own.parameter_bytes,
                gradient_bytes=own.gradient_bytes,
                optimizer_bytes=own.optimizer_bytes,
                step_us=round(self._step_us(own), 3),
                reduce_us=round(self._reduction_us("embedding", own), 3),
            ),
        )


@dataclass(frozen=True)
class _Part:
    """A layer's profile, the parts of its times before the factors, and `launch_bound` passes."""

    layer: LayerProfile
    parts: dict[Role, Parts]
    launch_bound: tuple[OpKind, ...]


@lru_cache(maxsize=8)
def _layers(listed: tuple[tuple[str, str], ...]) -> tuple[Layer, ...]:
    """The layers of a model, of which only names and kinds are known."""
    return tuple(Layer(name=name, profile=kind) for name, kind in listed)
