"""The search over sharded state and its all-gathers, against all places on a 2 × 2 mesh."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import combinations, permutations, product

from synth.costs.costs import Costs, uniform_costs
from synth.families import generate
from synth.interop.torch_comms_csv import to_torch_comms_csv
from synth.op_kinds import ADDING, READING, OpKind
from synth.plan.weight_passing.least_share import one_of, with_least_share, with_share
from synth.plan.weight_passing.sharded_search import ShardedPipelinesSearch
from synth.profile.links import Link, Links
from synth.schedule.model import Placement
from synth.schedule.ops import Op
from synth.schedule.rank_memory import peak_bytes
from synth.schedule.sharded_pipelines import sharded_pipelines, side_by_side
from synth.schedule.verify import ScheduleError, verify
from synth.schedule.weight_flow import Sharded
from synth.search.outcome import StoppedBy
from synth.solver.infeasibility import needed_bytes
from synth.solver.options import SolveOptions
from synth.solver.problem import Problem
from synth.solver.solver import solve

PIPELINES = 2
ORDER = generate("interleaved:2", 2, 1)


def costs() -> Costs:
    # A rank has a stage of many parameters and one of large activations. While the second one runs,
    # ZeRO-3 frees the first. Its gather takes 201 µs, as long as a backward.
    one = uniform_costs(
        1,
        forward_us=100,
        backward_input_us=100,
        backward_weight_us=100,
        saved_bytes=7,
        saved_w_bytes=3,
        output_bytes=2,
    ).stages[0]
    large = one.replace(parameter_bytes=200, gradient_bytes=120, static_bytes=520)
    busy = {**one.rise_bytes, OpKind.F: 300, OpKind.B: 300, OpKind.BW: 300}
    small = one.replace(parameter_bytes=20, gradient_bytes=12, static_bytes=52, rise_bytes=busy)
    links = Links(default=Link(latency_us=1, bandwidth_bytes_per_s=5e5))
    return Costs(stages=(large, large, small, small), links=links)


def problem_of(cap: int | None, count: int = 1) -> Problem:
    one = ORDER.placement.ranks[0]
    where = Placement(tuple(tuple(2 * d + rank for rank in one) for d in range(PIPELINES)))
    caps = None if cap is None else (cap,) * where.num_ranks
    return Problem(costs(), where, PIPELINES * count, caps)


def all_places(program: Sequence[Op]) -> Iterator[tuple[Op, ...]]:
    """Every set of gaps at which a rank gathers and reduces each stage, in every order in a gap."""
    gaps = range(len(program) + 1)
    choices: list[list[list[tuple[int, OpKind, int]]]] = []
    for stage in sorted({op.stage for op in program}):
        for kind, users in ((OpKind.UNSHARD, READING), (OpKind.REDUCE_GRAD, ADDING)):
            uses = [n for n, op in enumerate(program) if op.stage == stage and op.kind in users]
            sets = [c for size in range(1, len(uses) + 1) for c in combinations(gaps, size)]
            choices.append(
                [[(gap, kind, stage) for gap in c] for c in sets if is_possible(c, kind, uses)]
            )
    for chosen in product(*choices):
        by_gap: defaultdict[int, list[tuple[OpKind, int]]] = defaultdict(list)
        for gap, kind, stage in (one for each in chosen for one in each):
            by_gap[gap].append((kind, stage))
        for orders in product(*(permutations(by_gap[gap]) for gap in gaps)):
            yield with_collectives(program, orders)


def is_possible(gaps: Sequence[int], kind: OpKind, uses: Sequence[int]) -> bool:
    """True if each visit is read and each sum is added to, and none is missing."""
    if kind == OpKind.UNSHARD:
        pairs = zip(gaps, (*gaps[1:], max(uses) + 1), strict=True)
    else:
        pairs = zip((0, *gaps[:-1]), gaps, strict=True)
    parts = [[use for use in uses if begin <= use < end] for begin, end in pairs]
    return all(parts) and sum(map(len, parts)) == len(uses)


def with_collectives(
    program: Sequence[Op], orders: Sequence[Sequence[tuple[OpKind, int]]]
) -> tuple[Op, ...]:
    counts: defaultdict[tuple[OpKind, int], int] = defaultdict(int)
    found: list[Op] = []
    for gap, order in enumerate(orders):
        for kind, stage in order:
            found.append(Op(kind, stage, counts[kind, stage]))
            counts[kind, stage] += 1
        found += program[gap : gap + 1]
    return tuple(found)


@cache
def programs_with_peaks(rank: int) -> list[tuple[int, tuple[Op, ...]]]:
    """All programs of a rank with ZeRO-3, with its peak, which no other rank changes."""
    others = sharded_pipelines(ORDER, PIPELINES, Sharded.WEIGHTS).programs[:2]
    found = []
    for program in all_places(ORDER.programs[rank]):
        programs = [program if r == rank else others[r] for r in range(2)]
        lowered, _ = verify(side_by_side(ORDER, programs, PIPELINES, Sharded.WEIGHTS), costs())
        found.append((peak_bytes(lowered)[rank], program))
    return found


def least_us(cap: int) -> int | None:
    """The least makespan of all places that fit."""
    fitting = [[p for peak, p in programs_with_peaks(rank) if peak <= cap] for rank in range(2)]
    values = []
    for programs in product(*fitting):
        schedule = side_by_side(ORDER, programs, PIPELINES, Sharded.WEIGHTS)
        try:
            values.append(verify(schedule, costs())[1].makespan_us)
        except ScheduleError:
            continue
    return min(values, default=None)


def test_places_are_the_best_of_all_places_and_the_bound_holds() -> None:
    cap = max(min(peak for peak, _ in programs_with_peaks(rank)) for rank in range(2))
    for sharded in (Sharded.OPTIMIZER, Sharded.GRADIENTS):
        known = sharded_pipelines(ORDER, PIPELINES, sharded)
        assert max(peak_bytes(verify(known, costs())[0])) > cap
    options = SolveOptions(time_limit_s=0.05, deterministic=True, workers=1)
    found = ShardedPipelinesSearch(problem_of(cap), options, order=ORDER).run()
    least = least_us(cap)
    assert found.value_us == least == 1528
    one = one_of(problem_of(cap), with_least_share(costs(), PIPELINES))
    assert solve(one, options).lower_bound_us <= least
    assert found.schedule is not None and found.schedule.weights is not None
    assert found.schedule.weights.sharded == Sharded.WEIGHTS
    verify(found.schedule, costs(), (cap,) * 4)


def test_the_chosen_order_fits_where_zero_1_does_not() -> None:
    problem, options = problem_of(700, 2), SolveOptions(time_limit_s=0.2, workers=1)
    found = ShardedPipelinesSearch(problem, replace(options, deterministic=True)).run()
    assert found.schedule is not None and found.value_us is not None
    assert max(found.peak_bytes or ()) <= 700
    zero_1 = one_of(problem, with_share(costs(), PIPELINES, Sharded.OPTIMIZER))
    assert min(needed_bytes(zero_1)) > 700
    text = to_torch_comms_csv(found.schedule)
    visits = sum(op.kind == OpKind.UNSHARD for program in found.schedule.programs for op in program)
    assert text.count("UNSHARD") == visits // PIPELINES


def test_a_limit_below_the_least_share_is_infeasible() -> None:
    found = ShardedPipelinesSearch(problem_of(500), SolveOptions(time_limit_s=1)).run()
    assert found.stopped_by == StoppedBy.INFEASIBLE
    assert "whichever state they share" in (found.message or "")


def test_without_a_limit_it_is_no_slower_than_any_published_sharding() -> None:
    options = SolveOptions(time_limit_s=0.05, deterministic=True, workers=1)
    found = ShardedPipelinesSearch(problem_of(None), options, order=ORDER).run()
    known = [sharded_pipelines(ORDER, PIPELINES, sharded) for sharded in Sharded]
    known.append(side_by_side(ORDER, ORDER.programs, PIPELINES, None))
    assert (found.value_us or 0) <= min(verify(one, costs())[1].makespan_us for one in known)
