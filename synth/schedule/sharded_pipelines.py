"""Data-parallel copies of a pipeline, with state sharded over the ranks that hold a stage.

This is pipeline parallelism beside data parallelism with ZeRO (Rajbhandari et al. 2020, arXiv
1910.02054) over the data-parallel ranks. Pipeline d of n has ranks d·R to d·R + R − 1 and
micro-batches d·m to d·m + m − 1, so the homes of a stage are its n data-parallel ranks:

    rank          0  1  2  3 | 4  5  6  7
    stage         0  1  2  3 | 0  1  2  3
    homes of 1       x       |    x

    sharded     all-gather of a stage's parameters       reduce-scatter of its gradients
    OPTIMIZER   once, before its first F                 once, after its last W
    GRADIENTS   once, before its first F                 after each W
    WEIGHTS     before each run of ops of the stage,     after each run of W's of the stage
                freed after it

The first is Megatron-LM's distributed optimizer, the last FSDP with pipelines as torchtitan sets it
up: a rank that holds one stage has one run, so it gathers once in an iteration.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from synth.costs.costs import Costs
from synth.op_kinds import ADDING, READING, VISITS, OpKind
from synth.profile.links import MOST_COPIES
from synth.schedule.error import ScheduleError
from synth.schedule.insert_visits import with_visits
from synth.schedule.model import Placement, Schedule
from synth.schedule.ops import Op
from synth.schedule.weight_flow import Sharded, WeightFlow


def sharded_pipelines(
    schedule: Schedule, num_pipelines: int, sharded: Sharded = Sharded.OPTIMIZER
) -> Schedule:
    """Run data-parallel copies of a pipeline, and shard their state.

    Args:
        schedule: the schedule of one pipeline, whose weights stay.
        num_pipelines: the number of copies, 2 to `MOST_COPIES`; each runs as many micro-batches
            as the given schedule.
        sharded: the state of which a rank keeps only its share.

    Raises:
        ScheduleError: there are too few or too many pipelines; the schedule has copies of stages,
            weight passing, or versions of weights.
    """
    programs = [tuple(_with_visits(program, sharded)) for program in schedule.programs]
    return side_by_side(schedule, programs, num_pipelines, sharded)


def side_by_side(
    schedule: Schedule,
    programs: Sequence[Sequence[Op]],
    num_pipelines: int,
    sharded: Sharded | None,
) -> Schedule:
    """Run data-parallel copies of a pipeline whose programs list their visits and reductions.

    Args:
        schedule: the schedule of one pipeline, whose weights stay.
        programs: by rank its ops, with UNSHARDs, RESHARDs and REDUCE_GRADs in them.
        num_pipelines: the number of copies, as for `sharded_pipelines`.
        sharded: the state of which a rank keeps only its share; None: ranks keep all, and
            gradients are added up by all-reduces.

    Raises:
        ScheduleError: as `sharded_pipelines` raises it.
    """
    _check(schedule, num_pipelines)
    one = schedule.placement.ranks[0]
    num_ranks, count = schedule.num_ranks, schedule.num_micro_batches
    pipelines = range(num_pipelines)
    flow = None
    if sharded is not None:
        homes = tuple(tuple(d * num_ranks + rank for d in pipelines) for rank in one)
        flow = WeightFlow(homes, sharded)
    return replace(
        schedule,
        placement=Placement(tuple(tuple(d * num_ranks + rank for rank in one) for d in pipelines)),
        num_micro_batches=num_pipelines * count,
        programs=tuple(
            tuple(_of_pipeline(op, d, count) for op in program)
            for d in pipelines
            for program in programs
        ),
        name=f"{schedule.name}, {num_pipelines} pipelines, {sharded or 'nothing'} sharded",
        weights=flow,
    )


def _check(schedule: Schedule, num_pipelines: int) -> None:
    if num_pipelines < 2:
        raise ScheduleError(
            f"state is sharded over data-parallel pipelines; give at least 2, given {num_pipelines}"
        )
    if num_pipelines > MOST_COPIES:
        raise ScheduleError(
            f"ops can name {MOST_COPIES} data-parallel pipelines at most, given {num_pipelines}; "
            f"give fewer, with more micro-batches each"
        )
    reasons = {
        "has several copies of its stages": len(schedule.placement.ranks) > 1,
        "has weight passing already": schedule.weights is not None,
        "updates weights between its ops": schedule.versions is not None,
    }
    for reason, holds in reasons.items():
        if holds:
            raise ScheduleError(
                f"schedule {schedule.name} {reason}, so its state cannot be sharded over "
                f"pipelines; take one with a single copy of each stage and one update"
            )


def _of_pipeline(op: Op, pipeline: int, count: int) -> Op:
    """The op in one of the pipelines; visits and STEPs have numbers of their own."""
    is_numbered = op.kind in VISITS or op.kind == OpKind.STEP
    number = op.microbatch if is_numbered else pipeline * count + op.microbatch
    return op._replace(microbatch=number, replica=pipeline)


def _with_visits(program: Sequence[Op], sharded: Sharded) -> Iterator[Op]:
    """Add the visits of weights and the reductions of gradients to one rank's program.

    Weights that are freed are gathered again one run of ops of a stage ahead, so that transfers
    overlap compute.
    """
    reduced = list(_with_reductions(program, sharded))
    if sharded == Sharded.WEIGHTS:
        yield from with_visits(reduced, ahead=1)
        return
    first_reads = {op.stage: None for op in program if op.kind in READING}
    yield from (Op(OpKind.UNSHARD, stage) for stage in first_reads)
    yield from reduced


def _with_reductions(program: Sequence[Op], sharded: Sharded) -> Iterator[Op]:
    """Put a REDUCE_GRAD after each op that completes a sum of gradients to be reduced.

    The table at the top of this module says where that is.
    """
    adds = [(place, op.stage) for place, op in enumerate(program) if op.kind in ADDING]
    if sharded == Sharded.OPTIMIZER:
        ends = set({stage: place for place, stage in adds}.values())
    elif sharded == Sharded.GRADIENTS:
        ends = {place for place, _ in adds}
    else:
        ends = {list(run)[-1][0] for _, run in groupby(adds, key=lambda add: add[1])}
    numbers: defaultdict[int, int] = defaultdict(int)
    for place, op in enumerate(program):
        yield op
        if place in ends:
            yield Op(OpKind.REDUCE_GRAD, op.stage, numbers[op.stage])
            numbers[op.stage] += 1


def sharded_costs(costs: Costs, sharded: Sharded) -> Costs:
    """Return the costs as memory is counted; see `Costs.with_early_gradients`.

    With ZeRO-1 each rank keeps whole gradients, to which B adds those that it computes itself.
    """
    return costs if sharded is Sharded.OPTIMIZER else costs.with_early_gradients()
