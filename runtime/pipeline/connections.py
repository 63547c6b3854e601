"""Connecting one rank of a pipeline to the others: process groups, channels, and the executor."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain

import torch
from torch import nn

from synth.costs.costs import HOST
from synth.errors import SynthError
from synth.schedule.files.fingerprint import schedule_fingerprint
from synth.schedule.look_ahead import LookAhead
from synth.schedule.model import Schedule

from ..execution.base.channels import Channels
from ..execution.base.clock import OpClock
from ..execution.base.rank_context import RankContext
from ..execution.gradients.all_reduce import is_sharded
from ..execution.gradients.copies_and_ties import GradientReducer
from ..execution.gradients.data_parallel import DataParallel
from ..execution.gradients.layout import GradientLayout
from ..execution.gradients.reductions import Reductions
from ..execution.program.compiled_program import CompiledProgram
from ..execution.program.executor import Executor
from ..execution.program.out_of_order import OutOfOrder
from ..execution.stage.offload_sizes import SizeFinder
from ..execution.stage.shapes import ShapeFinder
from ..execution.stage.stage import Stage
from ..execution.stage.warm_up import WarmUp
from ..execution.transport.calls import CallNotes, note_links
from ..execution.transport.open_channels import open_channels
from ..execution.transport.rank_group import RankGroup
from ..execution.transport.traced_channels import TracedChannels
from ..execution.transport.watched_channels import WatchedReceives
from ..execution.weights.keeping import keep_stages
from ..execution.weights.kept_stage import KeptStage
from ..execution.weights.tied_stages import TiedStages
from .groups import PipelineGroups
from .options import PipelineOptions
from .rank_parts import RankParts, check_same

_CPU = torch.device("cpu")


@dataclass(frozen=True)
class Connections:
    """The parts of a rank that exchange messages with other ranks."""

    kept: dict[int, KeptStage] | None
    reducer: GradientReducer
    shapes: ShapeFinder
    saved_sizes: SizeFinder
    warm_up: WarmUp
    channels: Channels
    notes: CallNotes
    executor: Executor

    @property
    def meets(self) -> bool:
        """True if the next step or evaluation may begin with a collective of several ranks."""
        return (
            bool(self.reducer.ranks_together) or self.kept is not None or not self.shapes.are_fixed
        )


def connect(
    parts: RankParts, groups: PipelineGroups, options: PipelineOptions, clock: OpClock
) -> Connections:
    """Connect a rank; all ranks of the pipeline, and their peers, call this at the same time.

    Raises:
        Mismatch: the ranks have different schedules.
        SynthError: tied parameters, copies of stages or peers do not match; or FSDP2 gathers
            parameters for F and BW on two streams.
        RunFailure: another rank failed.
    """
    group, lowered = groups.pipeline, parts.lowered
    check_same(lowered.schedule, group)
    layout = GradientLayout(
        [stage.module for stage in parts.stages.values()],
        chain.from_iterable(options.tied_parameters.values()),
    )
    kept, tied = _keep(parts, group, options, layout)
    on_host = {n: each.host for n, each in (kept or {}).items() if each.host is not None}
    if on_host:
        groups = groups.on(_CPU)  # gradients are reduced where they are updated
    reducer = GradientReducer(
        lowered, groups.pipeline, parts.stages, tied, layout=layout, clock=clock
    )
    if lowered.versions is not None:
        _check_reduced_by_schedule(parts, groups, reducer)
    check_gathered(lowered.schedule, parts.stages.values(), parts.device)
    shapes = ShapeFinder(
        group, lowered.schedule.placement, parts.stages, changing=options.changing_shapes
    )
    saved_sizes = SizeFinder(group, lowered, parts.stages)
    warm_up = _warm_up(parts, group, options, kept or {})
    watched = WatchedReceives() if options.look_ahead else None
    notes = _notes(parts, group, reducer)
    channels = open_channels(
        parts.device, lowered.transfers, options.timeout_s, group, lowered, watched, on_host, notes
    )
    peers = _join_peers(parts, groups, layout, reducer, kept)
    program = CompiledProgram(
        _context(parts, channels, clock),
        kept=kept,
        reductions=Reductions(reducer, peers, options.on_gradients),
        progress=options.progress,
    )
    out_of_order = _look_ahead(parts, options.look_ahead, watched)
    executor = Executor(program, on_failure=groups.announce, out_of_order=out_of_order)
    return Connections(kept, reducer, shapes, saved_sizes, warm_up, channels, notes, executor)


def _keep(
    parts: RankParts, group: RankGroup, options: PipelineOptions, layout: GradientLayout
) -> tuple[dict[int, KeptStage] | None, dict[str, tuple[nn.Parameter, ...]]]:
    """Prepare weight passing, if the schedule has it; all ranks call this at the same time.

    Returns:
        What the rank keeps of its stages, by number, or None without weight passing; the tied
        parameters that it updates, by name.
    """
    flow, tied = parts.lowered.schedule.weights, options.tied_parameters
    if flow is None:
        return None, tied
    ties = TiedStages.of(group, parts.stages, tied, flow)
    kept = keep_stages(
        parts.lowered,
        group,
        parts.stages,
        layout,
        ties,
        device=parts.device,
        timeout_s=options.timeout_s,
    )
    return kept, ties.at_home(flow, kept, parts.rank)


def _notes(parts: RankParts, group: RankGroup, reducer: GradientReducer) -> CallNotes:
    """The notes on calls: over the links of transfers, and among ranks that have collectives."""
    lowered = parts.lowered
    between = {(t.source, t.target) for t in lowered.transfers if HOST not in (t.source, t.target)}
    collective = {tuple(each.ranks) for each in lowered.started_collectives}
    together = {tuple(range(group.size)), *collective, *reducer.ranks_together}
    return CallNotes(group.rank, note_links(between, together))


def _context(parts: RankParts, channels: Channels, clock: OpClock) -> RankContext:
    return RankContext(
        lowered=parts.lowered,
        rank=parts.rank,
        stages=parts.stages,
        channels=TracedChannels(channels, clock),
        device=parts.device,
        clock=clock,
    )


def check_gathered(schedule: Schedule, stages: Iterable[Stage], device: torch.device) -> None:
    """Refuse FSDP2 where F and BW run on two streams.

    What one of them gathers is read by the other without a wait for the first one's stream.

    Raises:
        SynthError: a stage is wrapped in FSDP2, and the schedule runs F and BW at once on CUDA.
    """
    if device.type == "cuda" and schedule.overlapped and any(s.is_sharded for s in stages):
        raise SynthError(
            f"schedule {schedule.name!r} runs F and BW at once on two CUDA streams, and FSDP2 "
            f"gathers the parameters of a stage on one; run a schedule without pairs, or stages "
            f"that are not sharded"
        )


def _check_reduced_by_schedule(
    parts: RankParts, groups: PipelineGroups, reducer: GradientReducer
) -> None:
    """Refuse gradients of several ranks that the reductions of the schedule do not add up."""
    reasons = {
        "several pipelines run side by side": groups.peers is not None,
        "ranks have tied parameters": reducer.has_tied,
        "stages of a rank share parameters": _share_parameters(parts.stages.values()),
        "a stage is wrapped for data parallelism": any(
            stage.is_wrapped for stage in parts.stages.values()
        ),
    }
    for reason, holds in reasons.items():
        if holds:
            raise SynthError(
                f"this schedule updates weights between its ops, and {reason}, for "
                f"whose gradients it has no reduction; run a schedule that flushes the pipeline"
            )
    for number in sorted(reducer.copied):
        if _has_sparse_gradients(parts.stages[number].module):
            raise SynthError(
                f"stage {number} has copies on several ranks and an embedding with sparse "
                f"gradients, which cannot be reduced; make it with sparse=False"
            )


def _share_parameters(stages: Iterable[Stage]) -> bool:
    """True if a parameter is one of several stages."""
    counts = Counter(id(p) for stage in stages for p in set(stage.parameters()))
    return any(count > 1 for count in counts.values())


def _has_sparse_gradients(module: nn.Module) -> bool:
    embeddings = (m for m in module.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag))
    return any(each.sparse and each.weight.requires_grad for each in embeddings)


def _warm_up(
    parts: RankParts, group: RankGroup, options: PipelineOptions, kept: Mapping[int, KeptStage]
) -> WarmUp:
    present = {number: each.weights.present_for_trial for number, each in kept.items()}
    warm_up = WarmUp(parts.lowered, parts.rank, parts.stages, parts.device, present)
    on_nccl = group.backend(parts.device) == "nccl"
    warm_up.active = on_nccl if options.warm_up is None else options.warm_up
    return warm_up


def _look_ahead(
    parts: RankParts, most_ops: int, watched: WatchedReceives | None
) -> OutOfOrder | None:
    """Return what chooses ops that run early; None: look-ahead is off.

    Raises:
        SynthError: a stage has sharded parameters. Their collectives pair up by order among
            processes, each of which would choose for itself.
    """
    if watched is None:
        return None
    if any(is_sharded(p) for stage in parts.stages.values() for p in stage.parameters()):
        raise SynthError(
            "look_ahead lets each process choose its order, and the collectives of sharded "
            "parameters (DTensor) need the same order on all processes; leave look_ahead out"
        )
    chooser = LookAhead(parts.lowered, parts.rank, most_ops, parts.cap_bytes)
    return OutOfOrder(chooser, parts.lowered.programs[parts.rank], watched)


def _join_peers(
    parts: RankParts,
    groups: PipelineGroups,
    layout: GradientLayout,
    reducer: GradientReducer,
    kept: Mapping[int, KeptStage] | None,
) -> DataParallel | None:
    if groups.peers is None:
        return None
    return DataParallel(
        groups.peers,
        parts.stages if kept is None else kept,
        rank=parts.rank,
        fingerprint=schedule_fingerprint(parts.lowered.schedule),
        layout=layout,
        summed=reducer.summed,
    )
