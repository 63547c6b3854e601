"""A race also runs under a lower limit, whose schedules fit as well."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from synth.costs.partition_costs import partition_costs
from synth.plan.choose import race
from synth.plan.choose.candidates import Candidate, Partitioning, Trial
from synth.plan.choose.less_memory import fits_less_memory, less_memory_trial
from synth.plan.choose.race_state import RaceState
from synth.plan.choose.ranking import final_ranking
from synth.schedule.placements import placement
from synth.solver.evaluate.evaluate import evaluate
from synth.solver.infeasibility import serial_schedule
from synth.solver.problem import Problem
from synth.solver.result import Result, judged_result
from synth.solver.solver import solve
from tests.synth.effort import counted
from tests.synth.plan.test_recompute import profile_that_saves_much

PROFILE = profile_that_saves_much()


def candidate(caps: Sequence[int] | None) -> Candidate:
    where = placement("linear", 2)
    num_layers = len(PROFILE.layers)
    sizes = (num_layers // 2, num_layers - num_layers // 2)
    costs = partition_costs(PROFILE, sizes)
    limits = None if caps is None else tuple(caps)
    return Candidate("linear", Problem(costs, where, 4, limits, partition=sizes))


def race_with_serial(caps: Sequence[int] | None) -> RaceState:
    """A race whose best schedule takes one micro-batch after the other."""
    one = candidate(caps)
    race = RaceState([one], Partitioning.GIVEN, 0.0)
    trial = race.new(one)
    serial = evaluate(one.problem, serial_schedule(one.problem), "serial")
    assert serial is not None
    trial.found = judged_result(one.problem, serial, trial.lower_bound_us)
    race.trials = [trial]
    return race


def tried(race: RaceState) -> tuple[Trial | None, list[tuple[int, ...] | None]]:
    """The trial of the lower limits, and the limits that were searched."""
    limits: list[tuple[int, ...] | None] = []

    def solved(lower: Candidate) -> Result:
        limits.append(lower.problem.caps_bytes)
        return solve(lower.problem, counted(2))

    return less_memory_trial(race, solved), limits


def test_what_fits_less_memory_is_a_start_with_a_bound_of_its_own() -> None:
    race = race_with_serial((1000, 1000))
    new, limits = tried(race)
    assert new is not None and new.found is not None and race.best is not None
    # 2 ** (39 / 4) is the largest of the row that is at most 0.95 of 1000.
    assert limits == [(861, 861)]
    assert new.problem.caps_bytes == (1000, 1000)
    assert new.value_us is not None and new.value_us < (race.best.value_us or 0)
    assert new.lower_bound_us == race.new(candidate((1000, 1000))).lower_bound_us


def test_limits_between_two_of_the_row_have_the_same_one_below() -> None:
    found = [tried(race_with_serial((cap, cap)))[1] for cap in (920, 1000, 1070, 1080)]
    assert found == [[(861, 861)], [(861, 861)], [(861, 861)], [(1024, 1024)]]


def test_unequal_limits_keep_their_ratio() -> None:
    assert tried(race_with_serial((1000, 500)))[1] == [(861, 431)]


def test_a_schedule_that_fits_less_memory_shows_that_memory_hardly_binds() -> None:
    race = race_with_serial((1000, 1000))
    assert race.best is not None and race.best.found is not None
    peak = max(race.best.found.peak_bytes or ())
    assert fits_less_memory(race)
    assert not fits_less_memory(race_with_serial((peak, peak)))
    assert not fits_less_memory(race_with_serial(None))


def test_what_is_found_for_the_same_problem_keeps_the_bound_that_is_known() -> None:
    race = race_with_serial((1000, 1000))
    (known,) = race.trials
    known.lower_bound_us += 1
    new, _ = tried(race)
    assert new is not None and race.add(new) is known
    assert race.trials == [known]
    assert known.value_us == new.value_us and known.lower_bound_us == new.lower_bound_us + 1


def test_trials_of_the_same_problem_share_the_best_bound_in_the_answer() -> None:
    race = race_with_serial((1000, 1000))
    (known,) = race.trials
    bound_us = known.lower_bound_us + 7
    race.trials.append(replace(known, lower_bound_us=bound_us))
    answer = final_ranking(race, 1.0, is_interrupted=False, is_exhausted=False)
    assert [trial.lower_bound_us for trial in answer.trials] == [bound_us] * 2
    assert answer.result.lower_bound_us == bound_us


def test_nothing_is_searched_without_a_limit_or_once_it_is_proven() -> None:
    assert tried(race_with_serial(None)) == (None, [])
    race = race_with_serial((1000, 1000))
    race.trials[0].lower_bound_us = race.trials[0].value_us or 0
    assert tried(race) == (None, [])


@pytest.mark.parametrize("tries", [True, False])
def test_a_race_answers_with_it_unless_it_is_left_out(
    monkeypatch: pytest.MonkeyPatch, tries: bool
) -> None:
    found = []

    def instead(race: RaceState, solved: object) -> Trial:
        best = race.best
        assert best is not None and best.found is not None
        found.append(replace(best, found=replace(best.found, found_by="less memory")))
        race.trials.clear()
        return found[-1]

    monkeypatch.setattr(race, "less_memory_trial", instead)
    monkeypatch.setattr(race, "fits_less_memory", lambda race: False)
    options = replace(counted(1), tries_less_memory=tries)
    ended = race.solve_best_of([candidate((1000, 1000))], PROFILE, Partitioning.GIVEN, options)
    assert len(found) == tries
    assert (ended.result.found_by == "less memory") == tries
