"""The solver where ranks hold several stages, or copies: brute force, the MILP, caps, bounds."""

import random
from collections.abc import Iterator, Sequence
from itertools import permutations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synth.costs.costs import Costs
from synth.errors import SynthError
from synth.objective import Objective
from synth.op_kinds import OpKind
from synth.profile.links import Link, Links
from synth.schedule.model import Buffering, Schedule
from synth.schedule.ops import Op
from synth.schedule.placements import placement
from synth.schedule.verify import ScheduleError, verify
from synth.search.outcome import StoppedBy
from synth.solver.infeasibility import find_shortage, serial_schedule, smallest_limit_bytes
from synth.solver.instance.memory_models import relaxed_memory, safe_memory
from synth.solver.options import SolveOptions
from synth.solver.problem import Problem
from synth.solver.solver import solve
from tests.sweep import sweep
from tests.synth.effort import counted
from tests.synth.solver.test_solve_exact import MILP, OBJECTIVES, check_sound, random_costs

KINDS = (OpKind.F, OpKind.B, OpKind.W)


def random_problem(seed: int, name: str, num_ranks: int, m: int, boundary: bool = False) -> Problem:
    """Unequal stages under a cap near the least one that some schedule keeps."""
    rng = random.Random(seed)
    where = placement(name, num_ranks)
    costs = random_costs(rng, where.num_stages, boundary, cheap_fusion=False)
    gradients = tuple(s.replace(gradient_bytes=rng.randint(0, 9)) for s in costs.stages)
    link = Link(latency_us=rng.randint(0, 2), bandwidth_bytes_per_s=2e6)
    costs = costs.replace(stages=gradients, links=Links(default=link))
    objective = rng.choice(OBJECTIVES)
    free = Problem(costs, where, m, None, objective)
    cap = smallest_limit_bytes(free) + rng.choice([0, 0, 2, 4, 7])
    return Problem(costs, where, m, (cap,) * num_ranks, objective)


def rank_orders(problem: Problem, rank: int) -> Iterator[tuple[Op, ...]]:
    """All orders of a rank's ops in which F, B, W and the micro-batches of a kind are in order."""
    held = problem.placement.held[rank]
    ops = []
    for stage, replica in held:
        first, count = problem.share(replica)
        ops += [Op(k, stage, j, replica) for j in range(first, first + count) for k in KINDS]
    for order in permutations(ops):
        if _in_order(order):
            yield order


def _in_order(order: Sequence[Op]) -> bool:
    done: set[Op] = set()
    for op in order:
        before = KINDS[: KINDS.index(op.kind)]
        if any(op._replace(kind=kind) not in done for kind in before):
            return False
        done.add(op)
    return True


def brute_force(problem: Problem) -> int:
    """The best value over all orders and some bufferings, by the verifier alone."""
    has_bytes = any(stage.output_bytes for stage in problem.costs.stages)
    sizes = (0, 1, 9) if has_bytes else (9,)
    values = []
    for programs in product(*(list(rank_orders(problem, r)) for r in range(problem.num_ranks))):
        for ahead, behind in product(sizes, repeat=2):
            schedule = Schedule(
                problem.placement,
                problem.num_micro_batches,
                programs,
                "brute",
                Buffering(ahead, behind),
            )
            try:
                _, timeline = verify(schedule, problem.costs, problem.caps_bytes)
            except ScheduleError:
                continue
            values.append(problem.objective.value_us(timeline))
    return min(values)


SMALL = [("v", 2, 1), ("looped:2", 2, 1), ("v", 1, 1), ("bidirectional", 2, 2)]


@pytest.mark.parametrize("seed", sweep(range(5), daily=3))
@pytest.mark.parametrize(("name", "num_ranks", "m"), SMALL)
def test_the_optimum_is_that_of_brute_force(name: str, num_ranks: int, m: int, seed: int) -> None:
    problem = random_problem(seed, name, num_ranks, m)
    result = solve(problem, counted())
    check_sound(result)
    best = brute_force(problem)
    assert result.lower_bound_us <= best
    if name != "bidirectional" or problem.objective == Objective.MAKESPAN:
        assert result.value_us == result.lower_bound_us == best


@pytest.mark.parametrize("seed", sweep(range(4), daily=1))
@pytest.mark.parametrize(("name", "num_ranks", "m"), SMALL)
def test_bounds_hold_with_boundary_bytes(name: str, num_ranks: int, m: int, seed: int) -> None:
    problem = random_problem(seed + 50, name, num_ranks, m, boundary=True)
    result = solve(problem, SolveOptions(time_limit_s=0.5, workers=1))
    check_sound(result)
    assert result.lower_bound_us <= brute_force(problem)


@pytest.mark.parametrize(
    ("name", "num_ranks", "m"), [("v", 2, 2), ("looped:2", 2, 2), ("bidirectional", 2, 3)]
)
@pytest.mark.parametrize("seed", range(2))
def test_cpsat_and_milp_agree(name: str, num_ranks: int, m: int, seed: int) -> None:
    problem = random_problem(seed + 100, name, num_ranks, m)
    problem = Problem(problem.costs, problem.placement, m, problem.caps_bytes)
    result = solve(problem, counted(30))
    milp = solve(problem, MILP)
    check_sound(result)
    assert result.stopped_by == milp.stopped_by == StoppedBy.OPTIMAL
    assert result.value_us == milp.value_us


@settings(max_examples=15, deadline=None)
@given(
    st.integers(0, 10**6),
    st.sampled_from(["linear", "v", "looped:3", "wave:2", "bidirectional", "bidirectional-v"]),
    st.integers(1, 4),
    st.integers(2, 7),
    st.booleans(),
)
def test_any_placement_is_solved_within_its_caps(
    seed: int, name: str, num_ranks: int, m: int, boundary: bool
) -> None:
    problem = random_problem(seed, name, num_ranks, m, boundary)
    result = solve(problem, SolveOptions(time_limit_s=0.5, workers=1))
    check_sound(result)


@settings(max_examples=200, deadline=None)
@given(
    st.integers(0, 10**6),
    st.sampled_from(["linear", "v", "looped:2", "wave:2", "bidirectional-v"]),
    st.integers(1, 4),
    st.integers(2, 4),
)
def test_the_two_views_of_memory_bracket_the_verifiers(
    seed: int, name: str, num_ranks: int, m: int
) -> None:
    """An order that fits also fits the relaxed instance; one that fits the safe instance fits."""
    rng = random.Random(seed)
    problem = random_problem(seed, name, num_ranks, m, boundary=True)
    buffering = Buffering(rng.randint(0, 2), rng.randint(0, 2))
    serial = serial_schedule(problem)
    schedule = Schedule(problem.placement, m, serial.programs, "serial", buffering)
    for least, most, cap in _levels(problem, schedule):
        assert least <= cap <= most


def _levels(problem: Problem, schedule: Schedule) -> Iterator[tuple[int, int, int]]:
    """Each rank's peak by the certain and the safe instance, and by the lowered program."""
    from synth.schedule.lowering.lower import lower
    from synth.schedule.rank_memory import peak_bytes
    from synth.solver.instance.timing import order_of

    lowered = lower(schedule, problem.costs)
    peaks = peak_bytes(lowered)
    instances = (relaxed_memory(problem), safe_memory(problem, schedule.buffering))
    for rank, program in enumerate(schedule.programs):
        found = []
        for instance in instances:
            held = problem.placement.held[rank]
            base = sum(problem.costs.stages[stage].static_bytes for stage, _ in held)
            usage = peak = 0
            for copy, kind in order_of(instance, program):
                peak = max(peak, usage + instance[copy].peak_above_bytes[kind])
                usage += instance[copy].delta_bytes[kind]
            steps = [instance[c].peak_above_bytes[OpKind.STEP] for c in instance.held[rank]]
            found.append(base + max(peak, *steps))
        yield found[0], found[1], peaks[rank]


def test_fewer_micro_batches_than_replicas_are_refused() -> None:
    where = placement("bidirectional", 2)
    costs = Costs(stages=random_costs(random.Random(1), 2, False, False).stages)
    with pytest.raises(SynthError, match=r"too few micro-batches \(1\) for 2 replicas"):
        Problem(costs, where, 1)


def test_shortage_of_a_rank_with_two_stages_counts_both() -> None:
    problem = random_problem(3, "v", 2, 3)
    least = smallest_limit_bytes(problem)
    costs, where = problem.costs, problem.placement
    enough = solve(Problem(costs, where, 3, (least,) * 2), SolveOptions(time_limit_s=0))
    assert enough.schedule is not None
    shortage = find_shortage(Problem(costs, where, 3, (1, 1)))
    assert shortage is not None and shortage.rank == 0
    held = where.held[0]
    assert shortage.static_bytes == sum(costs.stages[stage].static_bytes for stage, _ in held)
