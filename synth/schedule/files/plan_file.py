"""The plan file: one portable JSON with the schedule, its costs, the workload and the claim."""

from collections.abc import Collection, Mapping, Sequence
from numbers import Integral
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import Field, PositiveInt, model_validator

from synth.costs.costs import Costs
from synth.costs.divided_vocabulary import divided_vocabulary
from synth.costs.partition_costs import partition_costs
from synth.costs.recomputation import FULL, Recomputation
from synth.costs.recomputed_layers import recomputing
from synth.errors import SynthError
from synth.profile import Profile
from synth.profile.estimate import ESTIMATED
from synth.profile.measurement_conditions import Conditions
from synth.profile.mesh import Mesh
from synth.profile.model_flops import ModelFlops
from synth.profile.workload import Workload
from synth.records.field_types import PlainText, PositiveCount, StrictCount
from synth.records.record import FileRecord
from synth.schedule.files.claim import NOT_SEARCHED, SAME_OPS, Claim
from synth.schedule.files.fingerprint import KEY as FINGERPRINT
from synth.schedule.files.fingerprint import Fingerprint
from synth.schedule.files.program_text import check_size, parse_programs, program_lines
from synth.schedule.files.weight_records import Versions, Weights
from synth.schedule.lowering.lower import Lowered
from synth.schedule.model import Buffering, Placement, Schedule
from synth.schedule.rank_memory import peak_bytes
from synth.schedule.simulate import Timeline
from synth.schedule.verify import ScheduleError, verify
from synth.schedule.verify_vocabulary import check_executable
from synth.system.display import Displayed
from synth.units import counted, format_bytes, format_us, shown

_Layer = TypeVar("_Layer")

# Fits into 64 bits.
_Cap = Annotated[int, Field(gt=0, lt=2**62, strict=True)]


class Plan(Displayed, FileRecord):
    """A plan file. It needs no other file to be shown, checked or run.

    Version 2 added the ops R, O, L, K and G, and the cost of an F that R follows. Version 3 added a
    fingerprint, version 4 a certificate of the bound, version 5 layers that B recomputes, version 6
    weight passing (the ops U, D and A), weights with versions (STEPs with numbers), the
    parameters' share of the static bytes, and the function that makes the inputs, version 7 the
    FLOPs of a micro-batch, version 8 programs that write a part which is repeated once, version 9
    ranks of backwards, and the gradients that B computes itself, version 10 the gradients of
    outputs, which frozen layers do not get, version 11 tied parameters of several stages, version
    12 ranks that are groups of devices, and the policies under which layers are recomputed in
    part, version 13 F and BW of two micro-batches that run at once (`&` between two ops), version
    14 a vocabulary that is divided over all ranks, version 15 the time of the reduction of
    gradients among the devices of a rank, and tied parameters that are frozen, version 17 what
    the send of an output and of a gradient takes of the sender's memory.
    """

    FORMAT: ClassVar[str] = "synth-schedule"
    VERSION: ClassVar[int] = 17
    OF_FILE: ClassVar[tuple[str, ...]] = (*FileRecord.OF_FILE, FINGERPRINT)
    SINCE: ClassVar[Mapping[str, int]] = {
        FINGERPRINT: 3,
        "claim.certificate": 4,
        "recomputed_layers": 5,
        "weights": 6,
        "versions": 6,
        "workload.inputs": 6,
        "flops": 7,
        "backward_placement": 9,
        "costs.stages.early_gradient_bytes": 9,
        "costs.stages.output_gradient_bytes": 10,
        "costs.ties": 11,
        "recompute_policies": 12,
        "workload.group": 12,
        "costs.stages.hidden_us": 13,
        "costs.stages.reduce_us": 15,
        "costs.ties.reduce_us": 15,
        "costs.stages.parts_bytes": 16,
        "costs.ties.trained": 16,
        "costs.stages.sent_bytes": 17,
        "costs.stages.shared_gradient_bytes": 17,
        "vocabulary": 14,
    }
    MADE_BY: ClassVar[tuple[str, ...]] = ("synth solve",)

    name: PlainText
    profile_name: PlainText
    profile_fingerprint: str
    device: PlainText
    conditions: Conditions | None = Field(default=None, description="of the profile")
    workload: Workload
    flops: ModelFlops | None = Field(default=None, description="of the model, for the MFU")
    arguments: dict[str, str] = Field(default_factory=dict)
    partition: tuple[PositiveInt, ...] = Field(description="layers per stage, in forward order")
    layers: tuple[PlainText, ...] = Field(description="layer names, in forward order")
    recomputed_layers: tuple[StrictCount, ...] | None = Field(
        default=None, description="places of the layers that B computes again, whole or in part"
    )
    recompute_policies: dict[PlainText, tuple[StrictCount, ...]] | None = Field(
        default=None,
        description="places of those of which F keeps what a policy says, by policy; of the others "
        "it keeps only the input",
    )
    placement: tuple[tuple[StrictCount, ...], ...] = Field(description="[replica][stage] → rank")
    backward_placement: tuple[tuple[StrictCount, ...], ...] | None = Field(
        default=None, description="the ranks of R, B, BW and W; None: those of the placement"
    )
    receive_ahead: StrictCount = 1
    send_behind: StrictCount = 2
    eager: bool = Field(default=True, description="copies are reduced as soon as possible")
    weights: Weights | None = Field(
        default=None, description="how weights are passed; None: they stay"
    )
    versions: Versions | None = Field(
        default=None, description="updates within the plan; None: one, at its end"
    )
    vocabulary: Literal[1, 2] | None = Field(
        default=None,
        description="the barriers of an embedding and a head that are divided over all ranks, as "
        "layers of their own; None: they are whole",
    )
    num_micro_batches: PositiveCount
    caps_bytes: tuple[_Cap, ...] | None = None
    costs: Costs
    claim: Claim
    programs: tuple[str, ...] = Field(
        min_length=1,
        description="one line of ops per rank; [F0.1 BW0.0 STEP0]*9+1/1 is a part that runs 9 "
        "times, the numbers of micro-batches and of updates larger by 1 each time; F0.3&BW1.1 are "
        "F and BW that run at once",
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if sum(self.partition) != len(self.layers):
            raise ValueError(
                f"partition covers {sum(self.partition)} layers, there are {len(self.layers)}"
            )
        recomputed = self.recomputed_layers or ()
        if list(recomputed) != sorted({i for i in recomputed if i < len(self.layers)}):
            raise ValueError(
                f"recomputed_layers must be places of the {len(self.layers)} layers, counted from "
                f"0, each once and in forward order"
            )
        named = [place for at in (self.recompute_policies or {}).values() for place in at]
        if len(set(named)) < len(named) or not set(named) <= set(recomputed):
            raise ValueError("recompute_policies must give recomputed_layers one policy each")
        if FULL in (self.recompute_policies or {}):
            raise ValueError(f"recompute_policies must not name {FULL!r}, the policy of the others")
        num_stages = len(self.partition)
        if len(self.costs.stages) != num_stages:
            raise ValueError(f"{len(self.costs.stages)} stage costs for {num_stages} stages")
        rows = (*self.placement, *(self.backward_placement or ()))
        if not self.placement or any(len(ranks) != num_stages for ranks in rows):
            raise ValueError(f"placement must give a rank to each of the {num_stages} stages")
        backward = self.backward_placement
        if backward is not None and len(backward) != len(self.placement):
            raise ValueError("backward_placement must have as many copies as placement")
        ranks = {rank for row in rows for rank in row}
        if ranks != set(range(len(self.programs))):
            raise ValueError(
                f"placement names ranks {sorted(ranks)}, there are {len(self.programs)} programs"
            )
        if self.caps_bytes is not None and len(self.caps_bytes) != len(self.programs):
            raise ValueError(f"{len(self.caps_bytes)} caps for {len(self.programs)} ranks")
        check_size(self.programs, num_stages * len(self.placement), self.num_micro_batches)
        return self

    @classmethod
    def of(
        cls,
        profile: Profile,
        sizes: Sequence[int],
        schedule: Schedule,
        *,
        claim: Claim | None = None,
        caps_bytes: tuple[int, ...] | None = None,
        arguments: dict[str, str] | None = None,
        recomputed_layers: Collection[int] = (),
    ) -> Self:
        """Make the plan of a schedule of any origin, such as a published family.

        Args:
            profile: the measured costs of the layers.
            sizes: layers per stage; of a divided vocabulary each part is a layer and a stage.
            schedule: an order for these stages.
            claim: its times, peaks and bound; None: those that the simulation shows.
            arguments: the request, for display.
            recomputed_layers: places of the layers that are recomputed; of a `Recomputation` each
                under its policy, else whole.

        Raises:
            ScheduleError: there is no claim, and the schedule cannot run; or it is too long.
        """
        ranks = schedule.placement.ranks
        fingerprint = profile.fingerprint()
        if schedule.vocabulary:
            profile = divided_vocabulary(profile, schedule.num_ranks, schedule.vocabulary)
        costs = partition_costs(recomputing(profile, recomputed_layers), sizes, ranks)
        return cls(
            name=schedule.name,
            profile_name=profile.name,
            profile_fingerprint=fingerprint,
            device=profile.provenance.device,
            conditions=profile.provenance.conditions,
            workload=profile.workload,
            flops=profile.flops,
            arguments=arguments or {},
            partition=tuple(sizes),
            layers=tuple(layer.name for layer in profile.layers),
            recomputed_layers=tuple(sorted(recomputed_layers)) or None,
            recompute_policies=Recomputation(recomputed_layers).of_policies or None,
            placement=schedule.placement.ranks,
            backward_placement=schedule.placement.backward_ranks,
            receive_ahead=schedule.buffering.receive_ahead,
            send_behind=schedule.buffering.send_behind,
            eager=schedule.eager,
            weights=Weights.of(schedule.weights),
            versions=Versions.of(schedule.versions),
            vocabulary=schedule.vocabulary or None,
            num_micro_batches=schedule.num_micro_batches,
            caps_bytes=caps_bytes,
            costs=costs,
            claim=claim or Claim.of(schedule, costs, caps_bytes),
            programs=program_lines(schedule),
        )

    def to_data(self) -> dict[str, Any]:
        """Return the file as parsed JSON, with the fingerprint of the rest of it."""
        data = super().to_data()
        return {**data, FINGERPRINT: Fingerprint.of(data).model_dump()}

    def __repr__(self) -> str:
        """Give the figures of the claim, on four lines."""
        claim, asked = self.claim, self.claim.judged_by
        peak = max(claim.peak_bytes)
        limit = "" if self.caps_bytes is None else f" of {format_bytes(max(self.caps_bytes))}"
        proven = "proven optimal" if claim.gap == 0 else f"gap {claim.gap:.2%}"
        return (
            f"Plan {self.name} of {self.profile_name}: {counted(self.num_ranks, 'rank')}, "
            f"{counted(len(self.partition), 'stage')}, "
            f"{counted(self.num_micro_batches, 'micro-batch')}\n"
            f"  {asked.words} {format_us(claim.value_us)}, lower bound "
            f"{format_us(claim.lower_bound_us)}, {proven}\n"
            f"  highest peak {format_bytes(peak)}{limit}, on rank {claim.peak_bytes.index(peak)}\n"
            f"  status: {claim.stopped_by} ({claim.found_by})"
        )

    __str__ = __repr__

    @property
    def num_ranks(self) -> int:
        """The number of ranks of a pipeline."""
        return len(self.programs)

    @property
    def is_estimated(self) -> bool:
        """True if the times and bytes were computed, and not measured."""
        return self.device.endswith(ESTIMATED)

    @property
    def bounds_same_ops(self) -> bool:
        """True if the claimed bound is the most work of a rank in this schedule's own ops.

        That is so of schedules that were not searched, and of those whose F and BW run at once.
        """
        return self.claim.stopped_by == NOT_SEARCHED or bool(self.schedule().overlapped)

    @property
    def bound_scope(self) -> str:
        """The schedules for which the claimed bound holds, in words."""
        return SAME_OPS if self.bounds_same_ops else self.claim.bound_holds_for.words

    @property
    def recomputation(self) -> Recomputation:
        """The recomputed layers, each with its policy."""
        whole = dict.fromkeys(self.recomputed_layers or (), FULL)
        named = self.recompute_policies or {}
        return Recomputation(whole | {place: how for how, at in named.items() for place in at})

    def check_executable(self) -> None:
        """Refuse what only other programs execute."""
        check_executable(self.name, self.vocabulary or 0)

    def mesh(self, data_parallel: int | None = None) -> Mesh:
        """Return the processes that run it.

        Args:
            data_parallel: the pipelines side by side; None: as many as the plan counts on.

        Raises:
            SynthError: its ranks have devices that no process of synth stands for, or it is not
                executable.
        """
        self.check_executable()
        return Mesh.of(self.workload.group, self.num_ranks, data_parallel)

    def layers_of(self, stage: int) -> range:
        """The places in the model's list of a stage's layers."""
        first = sum(self.partition[:stage])
        return range(first, first + self.partition[stage])

    def modules(self, rank: int, layers: Sequence[_Layer]) -> dict[int, list[_Layer]]:
        """Return the layers of a rank's stages, by stage, as a `Pipeline` takes them.

        Args:
            rank: the rank within the plan, from 0 on.
            layers: all layers of the model, in the order in which they were profiled. Those in
                `recomputed_layers` are to be wrapped in activation checkpointing by the caller.

        Raises:
            SynthError: the plan has no such rank, or another number of layers; layers is no list;
                or it is not executable.
        """
        self.check_executable()
        if not (isinstance(rank, Integral) and 0 <= rank < self.num_ranks):
            raise SynthError(
                f"plan {self.name!r} has ranks 0 to {self.num_ranks - 1}; rank {rank!r:.40} was "
                f"asked for"
            )
        if not hasattr(layers, "__len__"):
            raise SynthError(f"layers is a {type(layers).__name__}; give a list of all layers")
        if len(layers) != len(self.layers):
            raise SynthError(
                f"{len(layers)} layers were given, plan {self.name!r} is for {len(self.layers)} "
                f"({', '.join(self.layers[:3])}, …); give the whole model as it was profiled"
            )
        stages = {stage for stage, _ in self.placed.held[rank]}
        return {stage: [layers[i] for i in self.layers_of(stage)] for stage in sorted(stages)}

    @property
    def placed(self) -> Placement:
        return Placement(self.placement, self.backward_placement)

    def schedule(self) -> Schedule:
        """Parse the schedule.

        Raises:
            ScheduleError: an op cannot be parsed; names its rank and place.
        """
        programs, overlapped = parse_programs(self.programs)
        return Schedule(
            self.placed,
            self.num_micro_batches,
            programs,
            self.name,
            Buffering(self.receive_ahead, self.send_behind),
            self.eager,
            None if self.weights is None else self.weights.flow(),
            None if self.versions is None else self.versions.rule(),
            overlapped,
            self.vocabulary or 0,
        )

    def check(self) -> tuple[Lowered, Timeline]:
        """Verify the schedule and compare it with the claim.

        Raises:
            ScheduleError: see `verify`; or a claimed figure differs from the simulated one.
        """
        lowered, timeline = verify(self.schedule(), self.costs, self.caps_bytes)
        claimed = (self.claim.makespan_us, self.claim.period_us, self.claim.peak_bytes)
        found = (timeline.makespan_us, timeline.period_us, peak_bytes(lowered))
        for name, said, got in zip(
            ("makespan_us", "period_us", "peak_bytes"), claimed, found, strict=True
        ):
            if said != got:
                raise ScheduleError(
                    f"the file claims {name} {said}, simulating its programs gives {got}; the "
                    f"programs or the costs were changed after it was made"
                )
        self.claim.check_proof()
        self.claim.check_end(is_of_memory="target" in self.arguments)
        self.claim.check_certificate(self.num_ranks, len(self.layers))
        self.claim.check_steady(timeline)
        self._check_arguments()
        return lowered, timeline

    def _check_arguments(self) -> None:
        """Check the recorded request against the plan, where both are plain."""
        seed, limit = self.arguments.get("seed"), self.arguments.get("mem_limit")
        if seed is not None and self.claim.seed is not None and seed != str(self.claim.seed):
            raise ScheduleError(
                f"the request has the seed {shown(seed)}, the claim {self.claim.seed}"
            )
        if limit == "none" and self.caps_bytes is not None and "target" not in self.arguments:
            raise ScheduleError("the request has no memory limit, and the plan has caps_bytes")
