"""Joint spacings of two copies of the model, against random schedules and against optima."""

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from synth.objective import Objective
from synth.schedule.files.certificate import Certificate, ProverName
from synth.schedule.model import Buffering, Schedule
from synth.schedule.placements import placement
from synth.schedule.rank_memory import peak_bytes
from synth.schedule.verify import ScheduleError, verify
from synth.solver.bounds.bound import Reference
from synth.solver.bounds.closed_form import work_bounds
from synth.solver.bounds.forward_spacing_model import Spacings
from synth.solver.bounds.joint_spacing import (
    Counts,
    JointSpacingProver,
    JointSpacings,
    applies,
    is_mirrored,
    ranks_of,
    spacing_model,
)
from synth.solver.bounds.rank_subsets import RankSubsets
from synth.solver.bounds.recheck import recheck
from synth.solver.bounds.rechecker import Recheck
from synth.solver.cpsat.run import run
from synth.solver.instance.instance import F, Instance
from synth.solver.instance.memory_models import relaxed_for_fusion
from synth.solver.options import Part, SolveOptions
from synth.solver.problem import Problem
from synth.solver.solver import solve
from tests.sweep import sweep
from tests.synth.effort import counted
from tests.synth.odd_problems import RandomOrders, odd_costs
from tests.synth.solver.test_solve import table_costs
from tests.synth.solver.test_solve_exact import random_costs

OPTIONS = SolveOptions(workers=1, deterministic=True)


def least_us(instance: Instance, ranks: tuple[int, ...], stage: int, counts: Counts) -> int:
    """The least time that is proven for some forwards of a stage, with no others known."""
    model = spacing_model(instance, ranks, stage, counts, JointSpacings())
    return run(model, OPTIONS, 1.0).bound_us


def sets_with(instance: Instance, stage: int) -> Iterator[tuple[int, ...]]:
    """The ranks that hold a stage, alone and with those of a stage below it."""
    ranks = ranks_of(instance, stage)
    yield ranks
    if stage + 1 < instance.num_ranks - 1 - stage:
        yield tuple(sorted({*ranks, *ranks_of(instance, stage + 1)}))


@pytest.mark.slow
@pytest.mark.parametrize("seed", sweep(range(60), daily=15))
def test_no_random_schedule_has_forwards_nearer_to_each_other(seed: int) -> None:
    rng = random.Random(seed)
    num_ranks, m = rng.choice([2, 4, 4, 6]), rng.choice([4, 6, 8])
    where = placement("bidirectional", num_ranks)
    costs = odd_costs(rng, where.num_stages, where.num_ranks)
    free = Problem(costs, where, m, None)
    schedule = Schedule(where, m, RandomOrders(rng, free).programs(), "random", Buffering(1, 2))
    try:
        lowered, timeline = verify(schedule, costs)
    except ScheduleError:  # buffers too small for this order
        return
    instance = relaxed_for_fusion(replace(free, caps_bytes=peak_bytes(lowered)))
    if not applies(instance):
        return
    ops = [op for programs in lowered.ops for op in programs]
    starts: dict[tuple[int, int], list[int]] = {}
    for op, start_us in zip(ops, timeline.start_us, strict=False):  # transfers follow
        if op.kind == F:
            starts.setdefault((op.stage, op.replica), []).append(start_us)
    for those in starts.values():
        those.sort()
    for stage in range(num_ranks // 2):
        first, second = starts[stage, 0], starts[stage, 1]
        for ranks in sets_with(instance, stage):
            for a, b in ((1, 1), (2, 1), (2, 2), (1, 3), (2, 0)):
                if a > len(first) or b > len(second):
                    continue
                apart_us = least_us(instance, ranks, stage, (a, b))
                for one in range(len(first) - a + 1):
                    for other in range(len(second) - b + 1):
                        window = first[one : one + a] + second[other : other + b]
                        assert max(window) - min(window) >= apart_us


def tight(num_ranks: int = 4, m: int = 12) -> Problem:
    """A bidirectional pipeline with memory for little more than two micro-batches."""
    where = placement("bidirectional", num_ranks)
    return Problem(table_costs(num_ranks), where, m, (6,) * num_ranks)


def proven(problem: Problem) -> JointSpacings:
    known = JointSpacings(1, (1, 2))
    JointSpacingProver(relaxed_for_fusion(problem), OPTIONS, lambda: False, known).prove(4.0)
    return known


def test_they_grow_with_the_forwards() -> None:
    found = proven(tight()).least_us
    assert 0 < found[2, 2] <= found[3, 1] <= found[3, 3]


@pytest.mark.slow
@pytest.mark.parametrize("seed", sweep(range(12), daily=4))
def test_optima_stay_the_same_with_them(seed: int) -> None:
    rng = random.Random(seed)
    costs = random_costs(rng, 2, boundary=False, cheap_fusion=False)
    free = Problem(costs, placement("bidirectional", 2), 12, None, Objective.MAKESPAN)
    need = solve(free, counted(0.2)).schedule
    assert need is not None
    caps = peak_bytes(verify(need, costs)[0])
    problem = replace(free, caps_bytes=tuple(max(1, cap * 3 // 4) for cap in caps))
    with_them = solve(problem, counted(3.0))
    without = solve(problem, replace(counted(3.0), without=frozenset({Part.FORWARD_SPACING})))
    if with_them.value_us is None or without.value_us is None:
        return
    assert with_them.lower_bound_us <= without.value_us
    assert without.lower_bound_us <= with_them.value_us


def bounded(problem: Problem, known: JointSpacings, value_us: int) -> tuple[int, Certificate]:
    """The bound of the ranks of the spacings' stage, and its certificate."""
    instance = relaxed_for_fusion(problem)
    subsets = RankSubsets(
        instance,
        problem.objective,
        OPTIONS,
        lambda: Reference(value_us, None),
        lambda: False,
        spacings=Spacings(joint=known),
        proven_us=problem.objective.value_us(work_bounds(instance)),
    )
    (*_, last) = subsets.destructive([ranks_of(instance, known.stage)], 1.0)
    return last.bound_us, last.certificate


@pytest.mark.slow
def test_a_certificate_with_them_is_proven_again_and_a_larger_one_is_not() -> None:
    problem = tight(m=8)
    bound_us, certificate = bounded(problem, proven(problem), 2_400)
    assert certificate.prover == ProverName.RANKS
    assert certificate.joint_spacings

    def again(one: Certificate) -> Recheck:
        return recheck(problem, one, bound_us, SolveOptions(20.0, workers=1), lambda: False)

    assert again(certificate) == Recheck.PROVEN
    lemmas = list(certificate.joint_spacings)
    larger = [lemma.replace(least_us=lemma.least_us + 1) for lemma in lemmas]
    assert again(certificate.replace(joint_spacings=larger)) == Recheck.REFUTED
    for change in ({"stage": 3}, {"ranks": (0,)}, {"num_forwards": (9, 9)}):
        other = [lemma.replace(**change) for lemma in lemmas]
        assert again(certificate.replace(joint_spacings=other)) == Recheck.REFUTED


def test_they_are_of_two_copies_on_two_stages_for_each_rank() -> None:
    assert applies(relaxed_for_fusion(tight()))
    for name in ("linear", "v", "bidirectional-v"):
        where = placement(name, 4)
        problem = Problem(table_costs(where.num_stages), where, 8, (9,) * 4)
        assert not applies(relaxed_for_fusion(problem))


def test_copies_change_places_where_their_ranks_have_equal_limits() -> None:
    problem = tight()
    assert is_mirrored(relaxed_for_fusion(problem))
    assert not is_mirrored(relaxed_for_fusion(replace(problem, caps_bytes=(6, 6, 6, 9))))
