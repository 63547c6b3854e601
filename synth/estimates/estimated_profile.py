"""The estimated profile: the parts of a model as layers of an ordinary profile."""

import datetime
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from pydantic import ValidationError

from synth.errors import SynthError
from synth.estimates.calibration import factors_of
from synth.estimates.collectives import neighbour_link
from synth.estimates.estimated_layer import DEFAULT_OPTIMIZER, EstimatedLayer, LayerEstimator
from synth.estimates.factors import KINDS, SCATTER_OF_EXPERTS, SOFTWARE, software_of
from synth.estimates.layout import Precision, Recompute, Sharding
from synth.estimates.op_times import Parts
from synth.estimates.ops import Role
from synth.profile import Profile, Provenance
from synth.profile.estimate import ESTIMATED, Estimate, Factor
from synth.profile.layer_profile import Layer
from synth.profile.links import Links, NodeLink
from synth.profile.mesh import DeviceGroup
from synth.profile.tied_parameters import TiedParameters
from synth.profile.workload import Workload
from synth.records.record import describe

# The training program of named profiles.
NAMED_SOFTWARE = "megatron"

# Of bytes: the largest error of the published peaks (`python -m benchmarks.estimates`), and of
# other kinds of layouts, of which none is published, a guess.
_MEMORY_SHOWN, _MEMORY_OTHERWISE = 0.08, 0.25


@dataclass(frozen=True)
class Estimator(LayerEstimator):
    """Computes the profile of a model, which has all its layers, their links and the workload."""

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
        kinds = dict.fromkeys(kind for _, kind in self.listed())
        parts = {kind: self.part(kind) for kind in kinds}
        layers = _layers(tuple(self.listed()))
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
                kind: self.with_variants(kind, part.layer) if variants else part.layer
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

    def _estimate(self, totals: Parts, parts: dict[str, EstimatedLayer]) -> Estimate:
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

    def _tied(self, parts: dict[str, EstimatedLayer]) -> tuple[TiedParameters, ...] | None:
        if not self.shape.tied:
            return None
        own = self.tied_states
        return (
            TiedParameters(
                layers=("embedding", "head"),
                parameter_bytes=own.parameter_bytes,
                gradient_bytes=own.gradient_bytes,
                optimizer_bytes=own.optimizer_bytes,
                step_us=round(self.step_us(own), 3),
                reduce_us=round(self.reduction_us_of("embedding", own), 3),
            ),
        )


@lru_cache(maxsize=8)
def _layers(listed: tuple[tuple[str, str], ...]) -> tuple[Layer, ...]:
    """The layers of a model, of which only names and kinds are known."""
    return tuple(Layer(name=name, profile=kind) for name, kind in listed)
