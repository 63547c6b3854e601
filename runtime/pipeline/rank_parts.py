"""The parts of a pipeline: the verified schedule, and this rank's stages."""

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from synth.costs.costs import uniform_costs
from synth.costs.stage_ties import StageTie
from synth.errors import Mismatch, SynthError
from synth.profile.links import Link, Links
from synth.records.safe_read import AnyPath
from synth.schedule.files.fingerprint import schedule_fingerprint
from synth.schedule.files.plan_file import Plan
from synth.schedule.lowering.lower import Lowered
from synth.schedule.model import Schedule
from synth.schedule.verify import verify
from synth.schedule.verify_vocabulary import check_executable
from synth.units import counted

from ..execution.gradients.all_reduce import is_sharded, local_part
from ..execution.stage.stage import Loss, Stage
from ..execution.transport.rank_group import RankGroup
from ..models.cut import Piece
from ..optimize.stage_optimizer import static_bytes
from .options import PipelineOptions

Modules = nn.Module | Sequence[nn.Module] | Mapping[int, nn.Module | Sequence[nn.Module] | Stage]
AnySchedule = Plan | Schedule | Lowered | AnyPath


@dataclass(frozen=True)
class RankParts:
    """A rank's part of a pipeline, not yet connected to the other ranks."""

    lowered: Lowered
    rank: int
    stages: dict[int, Stage]
    device: torch.device
    cap_bytes: int | None = None
    """The memory limit of the plan for this rank; None: it has none."""


def prepare_rank(
    schedule: AnySchedule, modules: Modules, group: RankGroup, options: PipelineOptions
) -> RankParts:
    """Verify the schedule and wrap a rank's modules as its stages.

    Raises:
        SynthError: the schedule cannot run, or not on this many ranks; the modules are of other
            stages; or they share parameters with other ranks, by the plan, and none were given.
    """
    schedule = Plan.load(schedule) if isinstance(schedule, str | os.PathLike) else schedule
    lowered = lower_verified(schedule)
    check_executable(lowered.schedule.name, lowered.schedule.vocabulary)
    check_size(lowered, group)
    if options.look_ahead and isinstance(schedule, Schedule):
        raise SynthError(
            "look_ahead keeps the memory limit, and a bare schedule has no costs to compute memory "
            "from; give the plan, or the schedule lowered on its costs"
        )
    caps = schedule.caps_bytes if isinstance(schedule, Plan) else options.caps_bytes
    stages = make_stages(lowered, group.rank, modules, options.loss)
    _check_parameters_of_loss(stages, lowered, options)
    _check_pieces_untied(stages if options.tied is None else {}, group)
    if isinstance(schedule, Plan):
        if options.tied is None:
            _check_untied(schedule, stages, lowered, group.rank)
        _warn_of_whole_stages(schedule, stages, group.rank)
    device = device_of(stages) if options.device is None else torch.device(options.device)
    cap_bytes = None if caps is None else caps[group.rank]
    return RankParts(lowered, group.rank, stages, device, cap_bytes)


def _check_parameters_of_loss(
    stages: Mapping[int, Stage], lowered: Lowered, options: PipelineOptions
) -> None:
    """Refuse trained parameters of the loss where those of stages are reduced, or move."""
    last = [stage for stage in stages.values() if stage.is_last]
    if not isinstance(options.loss, nn.Module) or not last:
        return
    own = {id(p) for stage in last for p in stage.module.parameters()}
    trained = [
        n for n, p in options.loss.named_parameters() if p.requires_grad and id(p) not in own
    ]
    is_alone = (
        len(lowered.schedule.placement.holders[-1]) == 1
        and lowered.visits is None
        and lowered.versions is None
        and options.data_parallel is None
        and not any(stage.is_wrapped for stage in last)
    )
    if trained and not is_alone:
        raise SynthError(
            f"the loss has the trained parameter {trained[0]}, which is a part of no stage, so "
            f"that neither copies nor data-parallel ranks would share its gradient: make the loss "
            f"the last layer of the last stage, called with the targets, and give no `loss`"
        )


def _check_pieces_untied(stages: Mapping[int, Stage], group: RankGroup) -> None:
    """Refuse stages that share a trained parameter of a whole model with stages of other ranks.

    Ranks with copies of the same stages sum its gradients in any case. All ranks call this.
    """
    own: dict[str, set[int]] = {}
    for number, stage in stages.items():
        for piece in (part for part in stage.module.modules() if isinstance(part, Piece)):
            for name, *_ in piece.trained_names():
                own.setdefault(name, set()).add(number)
    for rank, theirs in enumerate(group.gather(own)):
        shared = [name for name in own if own[name] != theirs.get(name, own[name])]
        if shared:
            raise SynthError(
                f"ranks {group.rank} and {rank} have {shared[0]} of the whole model in different "
                f"stages, and would train it apart: give it on each of these, as "
                f"tied={{'table': head.weight}}; or give a plan and all layers that cut_model "
                f"returns; or tied={{}} if they are of different models"
            )


def _check_untied(plan: Plan, stages: Mapping[int, Stage], lowered: Lowered, rank: int) -> None:
    """Refuse a plan whose profile has trained parameters that this rank shares with another one.

    Those that were frozen there may be apart, if they are frozen here.
    """
    held = [{stage for stage, _ in own} for own in lowered.schedule.placement.held]
    for tie in plan.costs.ties:
        having = [number for number, own in enumerate(held) if own.intersection(tie.stages)]
        if rank in having and len(having) > 1 and not _is_frozen(tie, plan, stages):
            raise SynthError(
                f"stages {', '.join(map(str, tie.stages))} of the plan share parameters, which "
                f"ranks {', '.join(map(str, having))} would train apart: give them on each of "
                f"these, as tied={{'table': head.weight}}; or tied={{}} if they are frozen, or not "
                f"shared here"
            )


def _is_frozen(tie: StageTie, plan: Plan, stages: Mapping[int, Stage]) -> bool:
    """True if a tie was frozen in the profile, and is here, as far as the bytes of stages tell.

    A stage with it has as many bytes that are frozen, and no more that are trained than planned.
    """
    if tie.trained:
        return False
    size = plan.workload.optimizer.gradient_bytes
    for number in set(tie.stages).intersection(stages):
        parameters = [*map(local_part, stages[number].module.parameters())]
        frozen = sum(p.nbytes for p in parameters if not p.requires_grad)
        trained = sum(size(p.numel(), p.element_size()) for p in parameters if p.requires_grad)
        if frozen < tie.static_bytes or trained > plan.costs.stages[number].gradient_bytes:
            return False
    return True


def _warn_of_whole_stages(plan: Plan, stages: Mapping[int, Stage], rank: int) -> None:
    """Warn of stages that are whole where the plan's ranks are groups that divide them.

    Layers that are made with the shapes of a part have no DTensors, and no more bytes than planned.
    """
    size = 1 if plan.workload.group is None else plan.workload.group.tensor
    parameters = [p for stage in stages.values() for p in stage.parameters()]
    if size == 1 or any(map(is_sharded, parameters)):
        return
    modules = [stage.module for stage in stages.values()]
    found = static_bytes(modules, plan.workload.optimizer)
    planned = plan.costs.static_bytes(stages.keys())
    if found > planned:
        warnings.warn(
            f"the plan's ranks are groups of {size} processes that divide their layers (tensor "
            f"parallelism), and the stages of rank {rank} are whole: {found} static bytes, where "
            f"the plan counts {planned}; divide them with parallelize_module before, or profile "
            f"without --tensor-parallel",
            stacklevel=4,
        )


def lower_verified(schedule: AnySchedule) -> Lowered:
    """Lower a schedule, or that of a plan or of its file, and verify it.

    Raises:
        SynthError: it cannot run.
    """
    if isinstance(schedule, Lowered):
        return schedule
    if isinstance(schedule, str | os.PathLike):
        schedule = Plan.load(schedule)
    if isinstance(schedule, Plan):
        return schedule.check()[0]
    if not isinstance(schedule, Schedule):
        raise SynthError(
            f"a schedule was given as {schedule!r:.60}; give a Plan, its file, or a Schedule"
        )
    # A bare schedule has no costs. The lives of values do not depend on them, so equal ones do.
    equal = uniform_costs(
        schedule.placement.num_stages,
        forward_us=1,
        backward_input_us=1,
        backward_weight_us=1,
        links=Links(host=Link()),
    )
    return verify(schedule, equal)[0]


def check_size(lowered: Lowered, group: RankGroup) -> None:
    """Check that the schedule is for the number of ranks in the group."""
    if lowered.num_ranks != group.size:
        raise SynthError(
            f"the schedule is for {lowered.num_ranks} ranks, the group has {group.size}; start as "
            f"many processes, or take a schedule for {counted(group.size, 'rank')}"
        )


def check_same(schedule: Schedule, group: RankGroup) -> None:
    """Refuse different schedules on the ranks, which would wait for each other forever.

    Raises:
        Mismatch: they differ; names the ranks.
    """
    mine = schedule_fingerprint(schedule)
    found = group.rendezvous.meet("schedule", range(group.size), mine)
    others = [str(rank) for rank, theirs in enumerate(found) if theirs != found[0]]
    if others:
        raise Mismatch(
            f"rank{'s' * (len(others) > 1)} {', '.join(others)} {'have' if others[1:] else 'has'} "
            f"another schedule than rank 0; give every rank the same one, or the same plan file"
        )


def make_stages(lowered: Lowered, rank: int, given: Modules, loss: Loss | None) -> dict[int, Stage]:
    """Wrap a rank's modules as the stages that the schedule places there.

    Raises:
        Mismatch: they are of other stages.
        SynthError: they are no modules.
    """
    placement = lowered.schedule.placement
    held = sorted({stage for stage, _ in placement.held[rank]})
    if not isinstance(given, Mapping):
        given = dict.fromkeys(held[:1], given) if len(held) == 1 else {}
    if sorted(given) != held:
        raise Mismatch(
            f"rank {rank} holds stage{'s' * (len(held) > 1)} {', '.join(map(str, held))}; it was "
            f"given modules for {sorted(given) or 'none of them by number'}: pass "
            f"{{stage: module}} for each"
        )
    last = placement.num_stages - 1
    return {
        number: module
        if isinstance(module := given[number], Stage)
        else Stage(
            _runnable(number, module), is_first=number == 0, is_last=number == last, loss=loss
        )
        for number in held
    }


def _runnable(number: int, given: object) -> nn.Module | list[nn.Module]:
    """Return what a stage runs: a module, or the modules of a list one after another."""
    if isinstance(given, nn.Module) and not isinstance(given, nn.ModuleList):
        return given
    listed = list(given) if isinstance(given, Sequence | nn.ModuleList) else []
    if not listed or not all(isinstance(each, nn.Module) for each in listed):
        raise SynthError(
            f"stage {number} was given {given!r:.60}; give a module, or a list of modules that run "
            f"one after another"
        )
    return listed


def device_of(stages: Mapping[int, Stage]) -> torch.device:
    """The device of the parameters that have values; the CPU if no stage has any."""
    tensors = (t for stage in stages.values() for t in stage.state() if not t.is_meta)
    return next((tensor.device for tensor in tensors), torch.device("cpu"))
