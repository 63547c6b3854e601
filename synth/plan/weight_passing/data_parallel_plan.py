"""Data-parallel pipelines that share the optimizer state: one to search, and the plan for all.

A search sees one pipeline. Its layers keep 1/n of their optimizer state, and their STEPs take 1/n
of the time (ZeRO-1). The schedule that it finds is run n times side by side
(`synth.schedule.sharded_pipelines`), with all-gathers of parameters and reduce-scatters of
gradients, which work in place and need no memory. They only delay ops, so that a lower bound for
one pipeline without them holds for all pipelines with them. Reductions among the devices of a rank
are not counted beside those of the pipelines.

A stage's share is rounded up once, as its ranks keep it. `costs_of_one` gives a partition these
costs. Shares of layers are rounded down, so that bounds over partitions hold; a schedule that was
found with them may exceed the limit by some bytes, and is refused when all pipelines are verified.
"""

from collections.abc import Sequence
from dataclasses import replace
from shlex import quote
from typing import Any, TypeVar

from synth.costs.costs import Costs
from synth.costs.partition_costs import partition_costs
from synth.costs.recomputed_layers import recomputing
from synth.errors import ExitCode, SynthError
from synth.op_kinds import VISITS, OpKind
from synth.plan.weight_passing.least_share import with_least_share, with_optimizer_share
from synth.profile import Profile
from synth.profile.layer_profile import Layer, LayerProfile
from synth.schedule.files.plan_file import Plan
from synth.schedule.files.program_text import program_text
from synth.schedule.model import Placement
from synth.schedule.rank_memory import exceeds_caps, peak_bytes
from synth.schedule.sharded_pipelines import sharded_pipelines
from synth.schedule.verify import verify
from synth.schedule.weight_flow import Sharded
from synth.search.outcome import StoppedBy
from synth.solver.problem import Problem
from synth.solver.result import Incumbent, Result
from synth.units import format_bytes_both

Solution = TypeVar("Solution", bound=Incumbent | Result)

# Reasons for which a search ends with a proof that it was asked for.
_PROVEN = (StoppedBy.OPTIMAL, StoppedBy.GAP)


class SharesExceedLimit(SynthError):
    """All pipelines need more memory than the search for one of them counted."""

    exit_code = ExitCode.NOTHING_FOUND


def sharing_optimizer(profile: Profile, num_pipelines: int) -> Profile:
    """Return the profile with a share of the optimizer state, and of the time of STEPs."""
    if num_pipelines == 1:
        return profile
    whole = profile.tied_parameters or ()
    tied = tuple(one.share_of_optimizer(num_pipelines) for one in whole) or None
    layers: list[Layer] = []
    profiles: dict[str, LayerProfile] = {}
    for layer in profile.layers:
        of_ties = [one.optimizer_bytes for one in whole if layer.name in one.layers]
        shared = _shared(profile.layer_profiles[layer.profile], num_pipelines, of_ties)
        # Layers of one profile share it, unless their shares are rounded differently.
        name, number = layer.profile, 1
        while profiles.setdefault(name, shared) != shared:
            name, number = f"{layer.profile}, rounded {number}", number + 1
        layers.append(layer.replace(profile=name))
    return profile.replace(layer_profiles=profiles, layers=tuple(layers), tied_parameters=tied)


def _shared(layer: LayerProfile, num_pipelines: int, of_ties: Sequence[int]) -> LayerProfile:
    """Return a layer with its share.

    The shares of tied parameters and of the layer's own are rounded down each: whichever of them
    a stage counts, the sum is at most the share of the stage.
    """
    shared = layer.time_us[OpKind.STEP].divided(num_pipelines)
    own_bytes = layer.optimizer_bytes - sum(of_ties)
    return layer.replace(
        optimizer_bytes=sum(size // num_pipelines for size in (own_bytes, *of_ties)),
        time_us={**layer.time_us, OpKind.STEP: shared},
        reduce_us=0,
    )


def costs_of_one(
    profile: Profile, sizes: Sequence[int], num_pipelines: int, where: Placement
) -> Costs:
    """Return the stage costs of one pipeline, whose stages keep and update their exact shares.

    Args:
        profile: the profile of whole layers.
        num_pipelines: the data-parallel pipelines.
        where: the placement of the stages of one.

    Raises:
        SynthError: the sizes are not positive or do not add up to the number of layers.
    """
    costs = partition_costs(profile, sizes, where.ranks)
    if num_pipelines == 1:
        return costs
    return with_optimizer_share(costs, num_pipelines)


def problem_of_all(problem: Problem, profile: Profile, num_pipelines: int) -> Problem:
    """Return the problem of all pipelines together, on the costs of whole layers.

    Args:
        problem: the problem of one pipeline, with a partition.
        profile: the profile of the layers, which share nothing and recompute nothing yet.
    """
    assert problem.partition is not None
    one, count = problem.placement, range(num_pipelines)
    ranks = tuple(tuple(d * problem.num_ranks + rank for rank in one.ranks[0]) for d in count)
    caps = problem.caps_bytes
    return replace(
        problem,
        costs=partition_costs(recomputing(profile, problem.recomputed_layers), problem.partition),
        placement=replace(one, ranks=ranks),
        num_micro_batches=num_pipelines * problem.num_micro_batches,
        caps_bytes=None if caps is None else caps * num_pipelines,
        profile=None,
    )


def of_all(found: Solution, problem: Problem, num_pipelines: int, gap: float) -> Solution:
    """Return a solution for one pipeline as a solution of the `problem_of_all`.

    Published schedules are those of one pipeline, and left out. A search that had proven its
    schedule ends with nothing better if collectives leave more than the gap that was asked for.

    Raises:
        SharesExceedLimit: the search counted shares of layers, and the stages' exceed the limit.
    """
    if num_pipelines == 1 or found.schedule is None:
        return found
    schedule = sharded_pipelines(found.schedule, num_pipelines)
    lowered, timeline = verify(schedule, problem.costs)
    peaks = peak_bytes(lowered)
    _check_shares(peaks, problem)
    simulated: dict[str, Any] = {
        "schedule": schedule,
        "timeline": timeline,
        "value_us": problem.objective.value_us(timeline),
        "peak_bytes": peaks,
        "certificate": None,
    }
    if isinstance(found, Incumbent):
        return replace(found, **simulated)
    whole = replace(found, **simulated, problem=problem, baselines=())
    if whole.gap is None or whole.gap == found.gap or whole.stopped_by not in _PROVEN:
        return whole
    is_held = whole.gap <= gap
    return replace(whole, stopped_by=StoppedBy.GAP if is_held else StoppedBy.NOTHING_BETTER)


def _check_shares(peaks: tuple[int, ...], problem: Problem) -> None:
    if problem.caps_bytes is None or not exceeds_caps(peaks, problem.caps_bytes):
        return
    excess, rank = max(
        (peak - cap, rank)
        for rank, (peak, cap) in enumerate(zip(peaks, problem.caps_bytes, strict=True))
    )
    exactly = f"§partition {','.join(map(str, problem.partition or ()))}"
    if problem.recomputed_layers:
        exactly += f" §recompute {quote(problem.recomputed_layers.written)}"
    raise SharesExceedLimit(
        f"the schedule that was found needs {format_bytes_both(excess)} more than the limit on "
        f"rank {rank}, as a stage's share of the optimizer state is rounded up; give {exactly}, "
        f"for which the search counts exact shares, or a larger §mem_limit"
    )


def is_sharding_chosen(plan: Plan) -> bool:
    """True if a search over data-parallel pipelines chose the state that is sharded."""
    return {"weights", "data_parallel"} <= plan.arguments.keys()


def one_pipeline(plan: Plan) -> Plan | None:
    """Return what a search saw of a plan: the first pipeline, with its share of optimizer state.

    The claim stays that of all pipelines. A search that chose the sharded state proved its bound
    for the least share (`least_share`). None: the plan has no data-parallel pipelines that share
    optimizer state.
    """
    num_pipelines, first = len(plan.placement), plan.placement[0]
    num_ranks, count = plan.num_ranks // num_pipelines, plan.num_micro_batches // num_pipelines
    flow = None if plan.weights is None else plan.weights.flow()
    is_chosen = is_sharding_chosen(plan)
    shares_optimizer = flow is not None and flow.sharded == Sharded.OPTIMIZER and num_ranks > 1
    if num_pipelines == 1 or not (is_chosen or shares_optimizer):
        return None
    ranks = tuple(tuple(d * num_ranks + r for r in first) for d in range(num_pipelines))
    if plan.placement != ranks:
        return None
    own = (
        tuple(op for op in program if op.kind not in VISITS)
        for program in plan.schedule().programs[:num_ranks]
    )
    if is_chosen:
        costs = with_least_share(plan.costs, num_pipelines)
    else:
        costs = with_optimizer_share(plan.costs, num_pipelines)
    return plan.replace(
        placement=(first,),
        programs=tuple(map(program_text, own)),
        num_micro_batches=count,
        weights=None,
        caps_bytes=None if plan.caps_bytes is None else plan.caps_bytes[:num_ranks],
        costs=costs,
    )
