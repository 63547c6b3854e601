"""Bounds from forward spacings, against optima and against random schedules."""

import random
import threading
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import pytest

from synth.costs.costs import Costs
from synth.objective import Objective
from synth.schedule.files.certificate import ProvenBound
from synth.schedule.model import Buffering, Placement, Schedule
from synth.schedule.placements import placement
from synth.schedule.rank_memory import peak_bytes
from synth.schedule.verify import ScheduleError, verify
from synth.solver.bounds import forward_spacing
from synth.solver.bounds.bound import BoundSetting, ProofState, Reference
from synth.solver.bounds.bound_policy import BoundPolicy
from synth.solver.bounds.forward_spacing import SpacingProver, far_apart, lengths
from synth.solver.bounds.forward_spacing_model import Spacings
from synth.solver.bounds.rank_sets import wider
from synth.solver.bounds.rank_subsets import RankSubsets
from synth.solver.cpsat.run import ModelOutcome
from synth.solver.improve.modulo_step import ModuloScheduling
from synth.solver.infeasibility import find_shortage
from synth.solver.instance.instance import B, F, OpIndex, W
from synth.solver.instance.memory_models import relaxed_for_fusion
from synth.solver.instance.timing import timed
from synth.solver.options import Part, SolveOptions
from synth.solver.order_pool import OrderPool
from synth.solver.problem import Problem
from synth.solver.solver import solve
from tests.sweep import sweep
from tests.synth.effort import counted, exact_alone
from tests.synth.even_stages import even
from tests.synth.odd_problems import RandomOrders, odd_costs
from tests.synth.solver.test_solve import table_costs
from tests.synth.solver.test_solve_exact import OBJECTIVES, random_costs


def spacings(problem: Problem, seconds: float = 5.0) -> tuple[SpacingProver, list[int]]:
    instance = relaxed_for_fusion(problem)
    options = SolveOptions(workers=1, deterministic=True)
    found = SpacingProver(
        instance, options, lambda: None, lambda: False, objective=problem.objective
    )
    return found, [proven.bound_us for proven in found.prove(seconds)]


# On one rank all stages; the first two on one; the first one on the last rank, and going round.
ODD = [[0, 0, 0], [0, 0, 1, 1], [1, 0, 0, 1], [0, 0, 1, 1, 2, 2], [2, 0, 1, 1, 0, 2]]


def any_placement(rng: random.Random, name: str, num_ranks: int) -> Placement:
    """A named one, or an odd one of any number of ranks."""
    if name != "odd":
        return placement(name, num_ranks)
    return Placement((tuple(rng.choice(ODD)),))


@pytest.mark.parametrize("name", ["linear", "v", "looped:2", "wave:3", "odd"])
@pytest.mark.parametrize("seed", sweep(range(80), daily=20))
def test_no_bound_excludes_a_schedule_that_there_is(name: str, seed: int) -> None:
    rng = random.Random(seed)
    num_ranks, m = rng.randint(1, 4), rng.randint(2, 7)
    where = any_placement(rng, name, num_ranks)
    costs: Costs = odd_costs(rng, where.num_stages, where.num_ranks)
    free = Problem(costs, where, m, None, rng.choice(OBJECTIVES))
    schedule = Schedule(
        free.placement, m, RandomOrders(rng, free).programs(), "random", Buffering(1, 2)
    )
    try:
        lowered, timeline = verify(schedule, costs)
    except ScheduleError:  # buffers too small for this order
        return
    problem = replace(free, caps_bytes=peak_bytes(lowered))
    if not forward_spacing.applies(relaxed_for_fusion(problem)):
        return
    apart, of_spacings = spacings(problem, 1.0)
    assert max(of_spacings) <= problem.objective.value_us(timeline)
    # Nodes come rank by rank.
    first = sum(len(ops) for ops in lowered.ops[: where.ranks[0][0]])
    times = zip(timeline.start_us[first:], timeline.end_us[first:], strict=True)
    ops = [(op, *span) for op, span in zip(lowered.ops[where.ranks[0][0]], times, strict=False)]
    starts = [start for op, start, _ in ops if op.kind == F and op.stage == 0]
    for length, least_us in apart.known.apart_us.items():
        for first in range(m - length):
            assert starts[first + length] - starts[first] >= least_us
    end_us = max(end for *_, end in ops)
    for length, least_us in apart.known.to_end_us.items():
        assert end_us - starts[m - 1 - length] >= least_us


@pytest.mark.parametrize("name", ["linear", "v", "looped:2", "odd"])
# Seed 0 takes a minute to solve.
@pytest.mark.parametrize("seed", sweep(range(1, 22), daily=3))
def test_no_bound_is_above_the_optimum(name: str, seed: int) -> None:
    """Nor where few ranks are looked at before all of them."""
    rng = random.Random(seed)
    num_ranks, m = rng.choice([(2, 5), (2, 7), (3, 4), (3, 6), (4, 5)])
    where = any_placement(rng, name, num_ranks)
    num_ranks = where.num_ranks
    costs = random_costs(rng, where.num_stages, boundary=False, cheap_fusion=False)
    zero = Problem(costs, where, m, (0,) * num_ranks, rng.choice(OBJECTIVES))
    shortage = find_shortage(zero)
    least = shortage.smallest_cap_bytes if shortage else 0
    problem = replace(zero, caps_bytes=(least + rng.choice([0, 2, 4, 7]),) * num_ranks)
    seconds = 20 if name == "linear" else 1
    best = solve(problem, exact_alone(seconds))
    if best.value_us is None or best.gap != 0:
        return
    instance = relaxed_for_fusion(problem)
    if not forward_spacing.applies(instance):
        return
    apart, of_spacings = spacings(problem, min(5, seconds))
    assert max(of_spacings) <= best.value_us
    if num_ranks == 1:
        return
    beyond = Reference(best.value_us + 50, None)
    rank_subsets = RankSubsets(
        instance, problem.objective, counted(20), lambda: beyond, lambda: False, {}, apart.known
    )
    of_ranks = [proven.bound_us for proven in rank_subsets.prove(20.0)]
    assert max(of_ranks) == of_ranks[-1] == best.value_us


def test_one_micro_batch_at_a_time_is_a_whole_way_apart() -> None:
    instance = even(3, 3, 12)
    found = SpacingProver(
        instance, SolveOptions(workers=1, deterministic=True), lambda: None, lambda: False
    )
    of_spacings = [proven.bound_us for proven in found.prove(5.0)]
    way_us = 3 * 55 + 3 * 58 + 4 * 2 + 35
    assert found.known.apart_us[1] == way_us
    assert of_spacings[0] == of_spacings[-1] == 12 * way_us


def test_a_known_schedule_says_where_forwards_are_nearest() -> None:
    instance = even(2, None, 4)
    kinds = [F, F, B, W, F, B, W, F, B, W, B, W]
    order = [(0, kind) for kind in kinds]
    known = timed([order, [(1, kind) for _, kind in order]], instance)
    found = SpacingProver(instance, SolveOptions(), lambda: known, lambda: False)
    end_us = known.starts[0, OpIndex(W, 3)] + 35
    assert found._nearest_us(1) == (55, end_us - known.starts[0, OpIndex(F, 2)])
    assert found._nearest_us(3) == (known.starts[0, OpIndex(F, 3)], end_us)


def test_stages_may_lie_on_ranks_in_any_order() -> None:
    """The first stage on the last rank: bounds are those of the plain order."""
    plain = Problem(table_costs(6), placement("linear", 6), 44, (9,) * 6)
    turned = replace(plain, placement=Placement((tuple(range(6))[::-1],)))
    assert spacings(turned, 0.02)[1][:2] == spacings(plain, 0.02)[1][:2]


def test_copies_that_share_micro_batches_unevenly_are_no_one_chain() -> None:
    """The second copy has one micro-batch less, so some stretches of the first have none there."""
    where = Placement(((0, 1), (2, 3)))
    problem = Problem(random_costs(random.Random(0), 2, False, False), where, 61, (99,) * 4)
    assert not forward_spacing.applies(relaxed_for_fusion(problem))


def test_spacings_add_up() -> None:
    known = Spacings({1: 10, 2: 25, 3: 36}, {0: 5, 2: 40})
    assert [known.added_us(k) for k in range(1, 8)] == [10, 25, 36, 50, 61, 75, 86]
    assert [known.whole_us(k) for k in range(6)] == [5, 15, 40, 50, 65, 76]


def test_lengths_are_all_that_memory_does_not_take_at_once_then_multiples_of_it() -> None:
    """Of so few that it takes them all at once, F's come one after another, that is all."""

    def asked(num_ranks: int, cap: int) -> list[int]:
        place = placement("linear", num_ranks)
        problem = Problem(table_costs(num_ranks), place, 128, (cap,) * num_ranks)
        return [*lengths(relaxed_for_fusion(problem))]

    assert asked(4, 9) == [1, *range(3, 41), 48, 60, 72]
    assert asked(32, 72) == [1, *range(24, 41), 48, 72]
    assert asked(32, 150) == [1, 50, 60, 72]  # no two bursts of 50: less is better than nothing


@pytest.mark.parametrize(
    ("name", "num_ranks"), [("linear", 1), ("linear", 2), ("linear", 3), ("linear", 8), ("v", 4)]
)
def test_what_a_schedule_reaches_is_not_asked_for_again(
    name: str, num_ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is asked twice, nor any length of which the known schedule is as near.

    How long it is to the end is asked only where ranks hold several stages.
    """
    where = placement(name, num_ranks)
    cap = 3 * num_ranks if name == "linear" else 9
    problem = Problem(table_costs(where.num_stages), where, 16, (cap,) * num_ranks)
    instance = relaxed_for_fusion(problem)
    seconds = 20 if name == "linear" else 0.2
    best = solve(problem, exact_alone(20 if name == "linear" else 0.01))
    assert best.schedule is not None
    hint, _ = OrderPool(problem.objective).hint(instance, best.schedule.programs)
    asked: list[forward_spacing._Question] = []

    def looked_at(
        self: SpacingProver, question: forward_spacing._Question, limit_s: float
    ) -> ModelOutcome:
        length = question.length
        nearest_us, to_end_us = self._nearest_us(length)
        assert nearest_us is not None and to_end_us is not None
        if question.is_to_end:
            assert to_end_us > self.known.whole_us(length)
        else:
            assert nearest_us > self.known.added_us(length)
        asked.append(question)
        return prove(self, question, limit_s)

    prove = SpacingProver._prove
    monkeypatch.setattr(SpacingProver, "_prove", looked_at)
    found = SpacingProver(instance, counted(20), lambda: hint, lambda: False)
    list(found.prove(seconds))
    assert asked and len(set(asked)) == len(asked)
    assert all(not question.is_to_end for question in asked) == (name == "linear")


def test_ranks_that_are_far_apart_come_first_only_where_spacings_are_known() -> None:
    instance, known = even(8, 12, 64), Spacings({1: 55})
    assert [len(ranks) for ranks in wider(instance, (0,), known)] == [2] * 4
    known = Spacings({1: 55, 4: 967})
    assert wider(instance, (0,), known) == [far_apart(instance, 2)] == [(0, 6)]
    assert wider(instance, (0, 6), known) == [far_apart(instance, 3)] == [(0, 4, 6)]
    assert wider(instance, (0, 4, 6), known) == [tuple(range(8))]


def test_the_last_rank_is_far_from_the_first_where_they_hold_several_stages() -> None:
    problem = Problem(table_costs(16), placement("v", 8), 32, (10,) * 8)
    instance, known = relaxed_for_fusion(problem), Spacings({1: 55, 4: 967})
    assert wider(instance, (0,), known)[0] == far_apart(instance, 2) == (0, 7)
    assert wider(instance, (0, 7), known)[0] == far_apart(instance, 3) == (0, 4, 7)
    assert wider(instance, (0, 4, 7), known) == [tuple(range(8))]


def test_a_search_goes_on_where_it_was() -> None:
    """And only open models are solved again."""
    problem = Problem(table_costs(8), placement("v", 4), 32, (8,) * 4)
    found = SpacingProver(relaxed_for_fusion(problem), counted(20), lambda: None, lambda: False)
    asked: list[tuple[forward_spacing._Question, bool]] = []

    def prove(question: forward_spacing._Question, limit_s: float) -> ModelOutcome:
        is_open = len(asked) == 6
        asked.append((question, is_open))
        return ModelOutcome(100, None, optimal=not is_open, infeasible=False, spent_s=1.0)

    found._prove = prove  # type: ignore[method-assign]
    assert len(list(found.prove(20.0))) == 7  # until one stays open
    assert len(list(found.prove(5.0))) == 5  # for so long
    assert len(list(found.prove(1e9))) > 20
    questions = [question for question, _ in asked]
    assert questions[7] == questions[6]
    assert len(set(questions)) == len(questions) - 1
    assert [question.length for question in questions] == sorted(q.length for q in questions)


@pytest.mark.parametrize(
    ("known_us", "apart_us", "idle_us", "turns"),
    [
        (100, 130, 0, ["apart", "apart"]),  # clearly more
        (100, 110, 105, ["apart", "idle", "apart"]),
        (100, 105, 110, ["apart", "idle", "idle"]),
        (100, 107, 105, ["apart", "idle", "apart"]),
        (100, 104, 105, ["apart", "idle", "apart", "idle"]),  # nearly as much
        (100, 104, None, ["apart", "apart"]),
        (100, None, 105, ["idle", "idle"]),
        (100, 90, 95, ["apart", "idle"]),  # single ranks prove more
    ],
)
def test_idle_times_and_spacings_have_a_trial_each(
    known_us: int,
    apart_us: int | None,
    idle_us: int | None,
    turns: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = Problem(table_costs(8), placement("v", 4), 40, (8,) * 4)
    instance, reference = relaxed_for_fusion(problem), Reference(50_000, None)
    asked: list[str] = []

    def said(name: str, us: int) -> SimpleNamespace:
        def bounds(_: float) -> Iterator[ProvenBound]:
            asked.append(name)
            yield ProvenBound.by_closed_forms(us)

        return SimpleNamespace(prove=bounds, bound_us=us)

    begun = {
        part: None if us is None else said(name, us)
        for part, name, us in (
            (Part.FORWARD_SPACING, "apart", apart_us),
            (Part.IDLE_TIME, "idle", idle_us),
        )
    }
    monkeypatch.setattr(BoundPolicy, "_bound", lambda _, part: begun[part])
    setting = BoundSetting(
        instance,
        Objective.MAKESPAN,
        counted(1),
        lambda: reference,
        ProofState(known_us),
        lambda: False,
    )
    for turn in BoundPolicy(setting)._first():
        if turn.bound is not None:
            list(turn.bound.prove(1.0))
    assert asked == turns


@pytest.mark.parametrize("ranks", ODD)
def test_all_ranks_are_looked_at_in_the_end(ranks: list[int]) -> None:
    """Whatever ranks hold, and wherever the first stage lies."""
    where = Placement((tuple(ranks),))
    problem = Problem(table_costs(len(ranks)), where, 32, (10,) * where.num_ranks)
    instance, known = relaxed_for_fusion(problem), Spacings({1: 55, 4: 967})
    assert ranks[0] in far_apart(instance, 2)
    chosen: tuple[int, ...] = (0,)
    while sets := wider(instance, chosen, known):
        assert len(sets[0]) > len(chosen)
        chosen = sets[0]
    assert chosen == tuple(range(where.num_ranks))


def test_a_stop_is_heeded_where_nothing_is_left_to_ask() -> None:
    asked = 0

    def reference() -> None:
        nonlocal asked
        asked += 1

    found = SpacingProver(even(4, 9, 128), SolveOptions(), reference, lambda: True)
    assert not list(found.prove(5.0)) and asked == 0


def test_an_interrupted_search_leaves_no_thread_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """CP-SAT in a thread that outlives the interpreter aborts the process."""
    problem = Problem(table_costs(8), placement("linear", 8), 64, (12,) * 8)
    before = threading.active_count()

    def interrupt(*_: object, **__: object) -> None:
        assert threading.active_count() > before
        raise KeyboardInterrupt

    monkeypatch.setattr(ModuloScheduling, "run", interrupt)
    options = SolveOptions(time_limit_s=20, workers=2, without=frozenset({Part.EXACT}))
    with pytest.raises(KeyboardInterrupt):
        solve(problem, options)
    assert threading.active_count() == before
