"""Prepares what a rank keeps of each of its stages with weight passing."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from synth.costs.costs import HOST
from synth.errors import SynthError
from synth.op_kinds import MOVES, OpKind
from synth.schedule.lowering.lower import Lowered
from synth.schedule.model import Placement
from synth.schedule.ops import Value, ValueKind
from synth.schedule.weight_flow import Route, Sharded, WeightFlow

from ..gradients.equal_tensors import check_alike
from ..gradients.layout import GradientLayout
from ..stage.stage import Stage
from ..transport.host.shared_host import SharedHost
from ..transport.rank_group import RankGroup
from .buffers import broadcast_buffers
from .kept_stage import KeptStage
from .stage_weights import has_values
from .tied_stages import TiedStages


def keep_stages(
    lowered: Lowered,
    group: RankGroup,
    stages: Mapping[int, Stage],
    layout: GradientLayout,
    ties: TiedStages,
    *,
    device: torch.device,
    timeout_s: float,
) -> dict[int, KeptStage]:
    """Take over the parameters of a rank's stages; all ranks of the pipeline call this.

    Returns:
        What the rank keeps, by stage.

    Raises:
        SynthError: stages differ between ranks, have a parameter in common, are wrapped for data
            parallelism, or change their weights in a forward; parameters have no values at their
            home; ranks that are to share the host's memory cannot.
    """
    flow = lowered.schedule.weights
    assert flow is not None
    _check(lowered, stages, layout)
    if device.type != "meta":  # else a stand-in for a rank that takes no steps
        _check_values_at_home(flow, group.rank, stages)
    check_alike(group, stages, layout)
    broadcast_buffers(lowered.schedule, group, stages, device)
    shared = _share_host(lowered, group, device, timeout_s)
    groups: dict[tuple[int, ...], Any] = {
        homes: group.subgroup(homes, purpose="weights")
        for homes in sorted(set(flow.homes))
        if len(homes) > 1
    }
    kept = {
        number: KeptStage(
            stages[number].module,
            flow,
            number,
            group.rank,
            groups.get(flow.homes[number]),
            device=device,
            sums=_sums(lowered, number) if flow.weights == Route.HOST else (),
            tied=ties.of_stage(number),
            shared=shared,
        )
        for number in sorted(stages)
    }
    if shared is not None:
        # A barrier: a name may go only after all ranks have mapped the memory.
        group.gather("kept")
        shared.forget_names()
    return kept


def ranks_share_host(lowered: Lowered) -> bool:
    """True if the host's memory keeps stages that other ranks than their homes use."""
    flow, held = lowered.schedule.weights, lowered.schedule.placement.held
    return (
        flow is not None
        and flow.weights == Route.HOST
        and not all(
            flow.is_home(stage, rank) for rank, pairs in enumerate(held) for stage, _ in pairs
        )
    )


def _share_host(
    lowered: Lowered, group: RankGroup, device: torch.device, timeout_s: float
) -> SharedHost | None:
    """Share the host's memory, if it keeps stages that other ranks than their homes use."""
    if not ranks_share_host(lowered):
        return None
    if device.type == "cuda":
        raise SynthError(
            "ranks share stages in the host's memory in this schedule, which can be run on the CPU "
            "only; take another one, such as mobius"
        )
    check_head_stays(lowered.schedule.placement)
    left = [transfer.value for transfer in lowered.transfers if transfer.target == HOST]
    if any(value.kind == ValueKind.SAVED for value in left):
        raise SynthError(
            "backwards run on other ranks than forwards in this schedule, and what autograd saved "
            "cannot leave its rank; list an R before each of these backwards"
        )
    return SharedHost.among(group, left, timeout_s)


def check_head_stays(placement: Placement) -> None:
    """Refuse a backward of the last stage on another rank than its forward."""
    if any(f[-1] != b[-1] for f, b in zip(placement.ranks, placement.of_backwards, strict=True)):
        raise SynthError(
            "the last stage's backward runs on another rank than its forward, which computes the "
            "loss that the backward starts from; give both the same rank"
        )


def _sums(lowered: Lowered, stage: int) -> Sequence[Value]:
    """The sums that a stage's REDUCE_GRADs leave, copies of the stage in turn."""
    ops = (op for program in lowered.schedule.programs for op in program)
    found = [op for op in ops if op.kind == OpKind.REDUCE_GRAD and op.stage == stage]
    found.sort(key=lambda op: (op.microbatch, op.replica))
    return [Value(ValueKind.GRAD_ACC, *op[1:]) for op in found]


def check_activations_stay(lowered: Lowered) -> None:
    """Refuse to move the saved activations of stages whose weights are there in visits only."""
    flow, programs = lowered.schedule.weights, lowered.schedule.programs
    visits = flow is not None and flow.sharded == Sharded.WEIGHTS
    if visits and any(op.kind in MOVES for program in programs for op in program):
        raise SynthError(
            "both weights and saved activations move in this schedule, which cannot be run; leave "
            "out the ops O, L, K and G, or keep whole parameters on the ranks that use them"
        )


def _check(lowered: Lowered, stages: Mapping[int, Stage], layout: GradientLayout) -> None:
    check_activations_stay(lowered)
    seen: dict[int, int] = {}
    for number, stage in stages.items():
        if stage.is_wrapped:
            raise SynthError(
                f"stage {number} is wrapped in DistributedDataParallel or FSDP2, and this schedule "
                f"passes weights; give the plain module"
            )
        parameters: list[Tensor] = list(stage.module.parameters())
        layout.check_same_after_forward(parameters)
        for parameter in parameters:
            other = seen.setdefault(id(parameter), number)
            if other != number:
                raise SynthError(
                    f"stages {other} and {number} share a parameter, and this schedule passes "
                    f"weights; give each stage its own, and name both on each rank: "
                    f"tied={{'name': [first, second]}}"
                )


def _check_values_at_home(flow: WeightFlow, rank: int, stages: Mapping[int, Stage]) -> None:
    for number, stage in stages.items():
        if flow.is_home(number, rank) and not has_values(stage.module):
            raise SynthError(
                f"stage {number} has its home on rank {rank}, and its parameters have no "
                f"values there, or its buffers have none: they are on the meta device, or were "
                f"released by an earlier pipeline (with other homes, or that keeps them in the "
                f"host's memory); give a module with values"
            )
