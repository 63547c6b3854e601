"""Choosing placement and partition: the best of all, with a bound that holds for all."""

import threading
from collections.abc import Sequence
from dataclasses import replace

import pytest

from synth.costs.partition_costs import partition_costs
from synth.errors import SynthError
from synth.plan.choose import first_trials, race
from synth.plan.choose.candidates import Candidate, Partitioning, SearchWatch
from synth.plan.choose.race import solve_best_of
from synth.plan.partition.balance import balance
from synth.plan.tuning import RACE
from synth.schedule.placements import usual
from synth.schedule.recomputed_stages import recomputed
from synth.schedule.verify import verify
from synth.search.outcome import StoppedBy
from synth.solver.options import SolveOptions
from synth.solver.problem import Problem
from synth.solver.result import Incumbent, Result
from synth.solver.solver import solve
from tests.synth.effort import counted, exact_alone
from tests.synth.plan.test_recompute import profile_that_saves_much

LAYERS = 6
EACH = profile_that_saves_much().layers[0]
PROFILE = profile_that_saves_much().replace(
    layers=tuple(EACH.replace(name=f"l{i}") for i in range(LAYERS))
)

# One micro-batch at a time, and only one copy of the layers; and not even that.
TIGHT = 138
NEVER = 100


def candidates(num_ranks: int = 2, m: int = 3, cap: int | None = None) -> list[Candidate]:
    """The usual placements that six layers are enough for."""
    found = []
    for name, where in usual(num_ranks).items():
        caps = None if cap is None else (cap,) * num_ranks
        try:
            sizes = balance(PROFILE, where, caps, m)
        except SynthError:
            continue
        problem = Problem(partition_costs(PROFILE, sizes), where, m, caps, partition=sizes)
        found.append(Candidate(name, problem))
    return found


def alone(problem: Problem) -> Result:
    return solve(problem, exact_alone(5))


@pytest.mark.parametrize("cap", [None, TIGHT])
def test_it_is_as_good_as_the_best_placement_proven_alone(cap: int | None) -> None:
    every = candidates(cap=cap)
    assert [candidate.name for candidate in every] == [
        *("linear", "looped:2", "v", "looped:3", "bidirectional", "bidirectional-v")
    ]
    found = {candidate.name: alone(candidate.problem) for candidate in every}
    best_us = min(result.value_us for result in found.values() if result.value_us is not None)
    chosen = solve_best_of(every, PROFILE, options=counted(40))
    assert chosen.result.value_us == chosen.result.lower_bound_us == best_us
    assert chosen.result.stopped_by == StoppedBy.OPTIMAL
    assert found[chosen.name].value_us == best_us
    own = {candidate.name: candidate.problem.partition for candidate in every}
    for trial in chosen.trials:
        if trial.problem.partition != own[trial.name]:
            continue  # of equal numbers of layers
        assert trial.is_impossible == (found[trial.name].value_us is None)
        if not trial.is_impossible:
            assert trial.lower_bound_us <= (found[trial.name].value_us or 0)
    assert chosen.result.schedule is not None
    verify(chosen.result.schedule, chosen.result.problem.costs, chosen.result.problem.caps_bytes)
    names = [baseline.name for baseline in chosen.result.baselines]
    assert len(names) == len(set(names))
    assert {"1f1b", "interleaved:2", "zb-v", "chimera"} <= set(names)


def test_where_a_copy_does_not_fit_one_way_wins_and_copies_do_not_count() -> None:
    one, both = candidates(cap=TIGHT), candidates()
    impossible = {c.name for c in one if alone(c.problem).value_us is None}
    chosen = solve_best_of(one, PROFILE, options=counted(40))
    assert {trial.name for trial in chosen.trials if trial.is_impossible} == impossible
    assert chosen.name not in impossible
    unlimited = solve_best_of(both, PROFILE, options=counted(40)).result
    assert (unlimited.value_us or 0) <= (chosen.result.value_us or 0)


def test_nothing_fits_anywhere() -> None:
    chosen = solve_best_of(candidates(cap=NEVER), PROFILE, options=counted(5))
    assert chosen.result.schedule is None
    assert chosen.result.stopped_by == StoppedBy.INFEASIBLE
    assert "infeasible with all candidates; with " in (chosen.result.message or "")
    assert all(trial.is_impossible for trial in chosen.trials)


def test_who_listens_hears_of_what_is_shorter_than_all_before() -> None:
    heard: list[Incumbent] = []
    every = candidates(m=4)
    chosen = solve_best_of(every, PROFILE, options=counted(20), watch=SearchWatch(heard.append))
    values = [incumbent.value_us for incumbent in heard]
    assert values == sorted(set(values), reverse=True)
    assert values[-1] == chosen.result.value_us
    for incumbent in heard:
        verify(incumbent.schedule, incumbent.problem.costs)
        assert incumbent.lower_bound_us <= (chosen.result.value_us or 0)


def test_a_stop_keeps_the_first_answer() -> None:
    stop = threading.Event()
    stop.set()
    chosen = solve_best_of(
        candidates(), PROFILE, options=SolveOptions(60), watch=SearchWatch(stop=stop)
    )
    assert chosen.result.schedule is not None
    assert chosen.result.stopped_by == StoppedBy.INTERRUPT
    assert [trial.found is None for trial in chosen.trials] == [False] + [True] * 5


def test_a_stop_before_anything_fits_proves_nothing() -> None:
    stop = threading.Event()
    stop.set()
    chosen = solve_best_of(
        candidates(cap=NEVER), PROFILE, options=SolveOptions(60), watch=SearchWatch(stop=stop)
    )
    assert chosen.result.schedule is None
    assert chosen.result.stopped_by == StoppedBy.INTERRUPT


def test_the_same_input_gives_the_same_answer() -> None:
    options = counted(3)
    first, second = (solve_best_of(candidates(m=5), PROFILE, options=options) for _ in range(2))
    assert first.result.schedule == second.result.schedule
    assert first.result.lower_bound_us == second.result.lower_bound_us
    assert [t.name for t in first.trials] == [t.name for t in second.trials]


def test_stages_may_recompute_on_each_placement() -> None:
    every = [candidate._replace(choice=None) for candidate in candidates(cap=TIGHT, m=4)]
    chosen = solve_best_of(every, PROFILE, options=counted(0.5))
    plain = solve_best_of(candidates(cap=TIGHT, m=4), PROFILE, options=counted(20))
    schedule = chosen.result.schedule
    assert schedule is not None and chosen.result.value_us is not None
    verify(schedule, chosen.result.problem.costs, chosen.result.problem.caps_bytes)
    assert recomputed(schedule)
    assert chosen.result.value_us < (plain.result.value_us or 0)
    assert chosen.result.lower_bound_us <= chosen.result.value_us


class Trials:
    """Answers with given values instead of searching, and keeps what it was asked."""

    def __init__(self, of: dict[str, Sequence[tuple[int, int]]]) -> None:
        self.left = {name: list(answers) for name, answers in of.items()}
        self.asked: list[tuple[str, float, bool]] = []
        self.names = {candidate.problem.placement: candidate.name for candidate in candidates()}
        self.schedules = {c.problem.placement: alone(c.problem) for c in candidates()}

    def __call__(self, profile: object, problem: Problem, *given: object) -> Result:
        options = given[1]
        assert isinstance(options, SolveOptions)
        name = self.names[problem.placement]
        self.asked.append((name, round(options.time_limit_s, 3), options.hint is not None))
        value, bound = self.left[name].pop(0)
        found = self.schedules[problem.placement]
        # As a deterministic search ends that has proven nothing.
        reason = StoppedBy.OPTIMAL if value == bound else StoppedBy.NOTHING_BETTER
        return replace(
            found, value_us=value, lower_bound_us=bound, stopped_by=reason, found_by=f"at {value}"
        )


def test_time_goes_to_those_that_can_still_win(monkeypatch: pytest.MonkeyPatch) -> None:
    # By their bounds: bidirectional cannot win, linear is proven; looped:2 is ahead to the end.
    answers = Trials(
        {
            "linear": [(2000, 2000)],
            "looped:2": [(1900, 1500), (1850, 1500), (1840, 1600)],
            "v": [(1950, 1500), (1860, 1500)],
            "looped:3": [(2100, 1500)],
            "bidirectional": [(2500, 1900)],
            "bidirectional-v": [(2600, 1500)],
        }
    )
    monkeypatch.setattr(race, "solve_repartitioning", answers)
    monkeypatch.setattr(first_trials, "judge", lambda *judged: None)
    chosen = solve_best_of(candidates(), PROFILE, Partitioning.GIVEN, options=counted(100))
    assert answers.asked == [
        *((name, 5.0, False) for name in answers.left),
        *((name, 14.0, True) for name in ("looped:2", "v")),  # the others are far behind
        ("looped:2", 42.0, True),
    ]
    assert (chosen.name, chosen.result.value_us) == ("looped:2", 1840)
    assert chosen.result.problem.num_micro_batches == 3
    assert chosen.result.found_by == "at 1840"
    # Of all that may yet be better; what the best is proven to be within is not enough.
    assert chosen.result.lower_bound_us == 1500
    assert chosen.result.stopped_by == StoppedBy.TIME_LIMIT
    assert [trial.name for trial in chosen.trials][:3] == ["looped:2", "v", "linear"]


def test_those_that_found_no_time_at_first_share_what_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = Trials({name: [(2000, 1000)] * 9 for name in [c.name for c in candidates()]})
    monkeypatch.setattr(race, "solve_repartitioning", answers)
    monkeypatch.setattr(first_trials, "judge", lambda *judged: None)
    monkeypatch.setattr(
        race, "RACE", replace(RACE, first_share_of_left=0.0, second_share_of_left=0.0)
    )
    solve_best_of(candidates(), PROFILE, Partitioning.GIVEN, options=counted(100))
    first, *others = answers.asked
    assert first[0] == "linear"
    assert [name for name, *_ in others[:5]] == [c.name for c in candidates()][1:]
    assert all(seconds > 10 for _, seconds, _ in others[:5])
