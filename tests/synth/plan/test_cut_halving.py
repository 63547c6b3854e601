"""Many cuts: list schedules on them, annealing in rungs, one search at the end."""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from benchmarks.realistic_profiles import RealisticCase, case_of_several_stages
from benchmarks.realistic_suite import candidate_of
from synth.costs.recomputation import NOT_RECOMPUTED, Recomputation
from synth.objective import BoundScope
from synth.plan.choose import cut_halving
from synth.plan.choose.candidates import Candidate, Partitioning, SearchWatch, Trial
from synth.plan.choose.cut_halving import CutHalving
from synth.plan.choose.list_schedule_trials import ListScheduleTrials
from synth.plan.choose.race import _Race, solve_best_of
from synth.plan.choose.race_state import RaceState
from synth.plan.partition.candidates import candidate_cuts, equal_cuts
from synth.plan.partition.stage_cost_table import StageCostTable
from synth.plan.recompute.choice import Choice
from synth.plan.tuning import CUT_HALVING, LIST_TRIALS
from synth.schedule.rank_memory import exceeds_caps, peak_bytes
from synth.schedule.recomputed_stages import recomputed, written_out
from synth.schedule.verify import verify
from synth.search.outcome import StoppedBy
from synth.solver.evaluate.evaluate import evaluate, never
from synth.solver.improve.priority_rules import variants
from synth.solver.infeasibility import may_fit, serial_schedule
from synth.solver.instance.memory_models import relaxed_memory
from synth.solver.options import Part, SolveOptions
from synth.solver.result import Result, judged_result
from tests.synth.effort import HOURS_S, counted

# Wave with two stages in each half, 6 ranks, 8 micro-batches, tight memory.
CASE = case_of_several_stages(6)


def listed(case: RealisticCase = CASE) -> Iterator[Trial]:
    """Trials with list schedules on all candidate cuts; the best ones come twice, and once here."""
    candidate = candidate_of(case)
    race = RaceState([candidate], Partitioning.SEARCHED, 0.0)
    cuts = candidate_cuts(StageCostTable(case.profile), candidate.problem.costs.num_stages)
    trials = ListScheduleTrials(case.profile, race, lambda _: cuts)
    found = trials.of_one(candidate, never, never, lambda _: None)
    return iter({id(trial): trial for trial in found}.values())


def check(trial: Trial) -> int:
    """Verify a trial's schedule on its costs and under its limits; return its makespan."""
    assert trial.found is not None and trial.found.schedule is not None
    lowered, line = verify(trial.found.schedule, trial.problem.costs)
    assert line.makespan_us == trial.value_us
    assert trial.lower_bound_us <= line.makespan_us
    assert not exceeds_caps(peak_bytes(lowered), trial.problem.caps_bytes)
    return line.makespan_us


def serial_race(choice: Choice = (), stages: Sequence[int] = ()) -> RaceState:
    """A race of all cuts on which the serial schedule fits, each with it and with R's of stages."""
    candidate = chosen(choice)
    race = RaceState([candidate], Partitioning.SEARCHED, 0.0)
    for listed_trial in listed():
        problem = replace(listed_trial.problem, profile=candidate.problem.profile)
        found = evaluate(problem, written_out(serial_schedule(problem), stages), "serial")
        if found is not None:
            trial = race.new(candidate.on(problem))
            trial.found = judged_result(problem, found, trial.lower_bound_us)
            race.trials.append(trial)
    return race


def chosen(choice: Choice) -> Candidate:
    """The case with a choice of recomputation; if it is to be searched, also of layers."""
    candidate = candidate_of(CASE)
    profile = CASE.profile if choice is None else None
    return Candidate("wave:2", replace(candidate.problem, profile=profile), choice)


def recomputed_in(trial: Trial) -> tuple[list[int], Recomputation]:
    """The stages with an R in a trial's schedule, and the layers that B recomputes."""
    assert trial.found is not None and trial.found.schedule is not None
    return recomputed(trial.found.schedule), trial.problem.recomputed_layers


def rungs(race: RaceState) -> None:
    """Run all rungs of a race, in counted effort."""
    options = counted(1)
    CutHalving(race, options, options.clock()).run(0.6, lambda _: None, lambda: None)


def test_list_schedules_fit_on_many_cuts_and_on_one_of_a_lower_bound_than_all_given() -> None:
    """One of equal numbers of layers comes before them, which tells most where time is short."""
    equal, first, *others = listed()
    others.insert(0, equal)
    table = StageCostTable(CASE.profile)
    assert equal.problem.partition in equal_cuts(table, first.problem.costs.num_stages)
    assert len(others) > 3
    assert len({trial.problem.partition for trial in (first, *others)}) == 1 + len(others)
    for trial in (first, *others):
        check(trial)
        assert may_fit(trial.problem)
    given = candidate_cuts(table, first.problem.costs.num_stages)
    assert first.problem.partition not in given
    assert {trial.problem.partition for trial in others} <= {*given}
    assert first.lower_bound_us < min(trial.lower_bound_us for trial in others)


def test_the_rules_have_the_limits_of_round_trips_and_wait_for_more_or_less() -> None:
    instance = relaxed_memory(candidate_of(CASE).problem)
    rules = list(variants(instance))
    works = [sum(instance[copy].work_us for copy in held) for held in instance.held]
    away = [1 + -(-trip // max(works)) for trip in instance.round_trip_us]
    most = max(copy.num_micro_batches for copy in instance.copies)
    for number in LIST_TRIALS.rules_of_several:
        limits = [rule.limit for rule in rules[number]]
        assert limits in ([min(most, a + more) for a in away] for more in (0, 1))
    patience = {rules[number][0].patience for number in LIST_TRIALS.rules_of_several}
    assert patience == {1.0, 0.5}


@pytest.mark.slow
@pytest.mark.parametrize("without", [frozenset(), frozenset({Part.MODULO})])
def test_blocks_take_the_time_of_heats_that_are_too_short(
    without: frozenset[Part], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks are found on the first cuts; the serial schedule leaves much to gain."""
    monkeypatch.setattr(cut_halving, "first_rounds_s", lambda num_ops: 1e9)
    race, rungs = serial_race(), 0
    before = {trial: check(trial) for trial in race.trials}
    options = replace(counted(0.6), without=without)

    def count() -> None:
        nonlocal rungs
        rungs += 1

    CutHalving(race, options, options.clock()).run(0.6, lambda _: None, count)
    found = {trial.found.found_by for trial in before if trial.found is not None}
    assert ("modulo scheduling" in found) == (not without)
    assert rungs == (len(CUT_HALVING.rungs) if without else 1)
    gained = [trial for trial in before if check(trial) < before[trial]]
    assert len(gained) >= (1 if without else CUT_HALVING.cuts_of_blocks // 2)
    assert all(check(trial) <= before[trial] for trial in before)


def test_each_rung_anneals_fewer_cuts_and_none_gets_worse(monkeypatch: pytest.MonkeyPatch) -> None:
    race = serial_race()
    before = {trial: check(trial) for trial in race.trials}
    ran: list[list[Trial]] = [[]]
    anneal = CutHalving._anneal

    def noted(self: CutHalving, trial: Trial, *given: object, **named: object) -> None:
        ran[-1].append(trial)
        anneal(self, trial, *given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(CutHalving, "_anneal", noted)
    options = counted(1)
    CutHalving(race, options, options.clock()).run(0.6, lambda _: None, lambda: ran.append([]))
    count = len(race.trials)
    assert [len(rung) for rung in ran[:-1]] == [min(count, most) for most in CUT_HALVING.rungs]
    assert all(check(trial) < before[trial] for trial in ran[0])
    assert race.best in ran[-2]


def test_what_an_order_recomputes_stays_in_its_annealing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CutHalving, "_move_choice", lambda *_: None)
    race = serial_race(None, stages=[0, 3])
    before = {trial: check(trial) for trial in race.trials}
    rungs(race)
    better = [trial for trial in race.trials if check(trial) < before[trial]]
    assert len(better) == min(len(race.trials), CUT_HALVING.rungs[0])
    assert all(recomputed_in(trial) == ([0, 3], NOT_RECOMPUTED) for trial in race.trials)


def test_the_best_order_recomputes_less_where_that_is_better() -> None:
    # One micro-batch at a time fits without the R's, which only take time.
    race = serial_race(None, stages=range(CASE.num_ranks))
    rungs(race)
    assert race.best is not None
    check(race.best)
    stages, layers = recomputed_in(race.best)
    assert len(stages) < CASE.num_ranks and not layers


@pytest.mark.parametrize(
    ("choice", "caps", "count", "partitioning", "applies"),
    [
        ((), True, 1, Partitioning.SEARCHED, True),
        (None, True, 1, Partitioning.SEARCHED, True),
        ((0,), True, 1, Partitioning.SEARCHED, False),
        (None, False, 1, Partitioning.SEARCHED, False),
        (None, True, 2, Partitioning.SEARCHED, True),
        (None, True, 1, Partitioning.EVEN, False),
        ((), True, 2, Partitioning.EVEN, False),
    ],
)
def test_it_applies_to_searched_partitions_under_a_limit(
    choice: Choice, caps: bool, count: int, partitioning: Partitioning, applies: bool
) -> None:
    candidate = chosen(choice)
    if not caps:
        candidate = candidate.on(replace(candidate.problem, caps_bytes=None))
    race, options = RaceState([candidate] * count, partitioning, 0.0), counted(1)
    found = CutHalving(race, options, options.clock())
    assert found.applies is applies
    assert not found.can_begin  # without a schedule


def several(choice: Choice = ()) -> list[Candidate]:
    """Three placements of the case, on their balanced partitions."""
    names = ("linear", "v", "wave:2")
    problems = (candidate_of(case_of_several_stages(6)._replace(placement=name)) for name in names)
    profile = CASE.profile if choice is None else None
    return [
        Candidate(name, replace(one.problem, profile=profile), choice)
        for name, one in zip(names, problems, strict=True)
    ]


def test_list_schedules_are_made_on_the_last_cuts_that_lower_the_bound() -> None:
    """Neighbouring cuts: from one to the next a layer moves over some boundaries."""
    candidate = candidate_of(CASE)
    race = RaceState([candidate], Partitioning.SEARCHED, 0.0)
    cuts = candidate_cuts(StageCostTable(CASE.profile), candidate.problem.costs.num_stages)
    trials = ListScheduleTrials(CASE.profile, race, lambda _: cuts)
    given = trials._least(candidate, cuts, LIST_TRIALS.cuts_of_one)
    last = trials._descended(given[0], never, lambda _: None)
    assert len(last) == LIST_TRIALS.descended_cuts
    bounds_us = [trial.lower_bound_us for trial in (*last, given[0])]
    assert bounds_us == sorted({*bounds_us})
    for after, before in pairwise(last):
        pairs = zip(after.problem.partition or (), before.problem.partition or (), strict=True)
        assert sorted(a - b for a, b in pairs if a != b) == [-1, 1]
    assert trials._descended(last[0], never, lambda _: None) == []


def test_list_schedules_of_several_placements_are_on_more_cuts_of_better_ones() -> None:
    race = RaceState(several(), Partitioning.SEARCHED, 0.0)
    trials = ListScheduleTrials(
        CASE.profile,
        race,
        lambda where: candidate_cuts(StageCostTable(CASE.profile), where.num_stages),
    )
    names: list[str] = []
    for trial in trials.of_several(never, lambda _: None):
        check(trial)
        names.append(trial.name)
        race.add(trial)
    first_round = [name for name in names[:12] if names.count(name)]
    assert {*first_round} == {"linear", "v", "wave:2"}
    assert len({(one.name, one.problem.partition) for one in race.trials}) == len(names)


def test_rungs_of_several_placements_have_some_cuts_of_each() -> None:
    race = RaceState(several(), Partitioning.SEARCHED, 0.0)
    for candidate in race.candidates:
        trials = ListScheduleTrials(
            CASE.profile,
            race,
            lambda where: candidate_cuts(StageCostTable(CASE.profile), where.num_stages),
        )
        for trial in trials.of_one(candidate, never, never, lambda _: None):
            race.add(trial)
    options = counted(1)
    runs = CutHalving(race, options, options.clock())
    for most in CUT_HALVING.rungs_of_several:
        taken = runs._near(most)
        most_of_each = -(-most * CUT_HALVING.most_share_of_each // 1)
        assert len(taken) <= most
        for name in {one.name for one in taken}:
            assert sum(one.name == name for one in taken) <= most_of_each
        halves = [((one.value_us or 0) + one.lower_bound_us) / 2 for one in taken]
        assert halves == sorted(halves)
    before = race.best_us
    runs.run(0.6, lambda _: None, lambda: None)
    assert race.best_us is not None and before is not None and race.best_us < before
    for trial in race.trials:
        check(trial)


@pytest.mark.slow
@pytest.mark.parametrize("choice", [(), None])
def test_the_best_cut_of_each_of_several_placements_stays(choice: Choice) -> None:
    candidates = several(choice)
    answer = solve_best_of(candidates, CASE.profile, Partitioning.SEARCHED, counted(1))
    best, *others = answer.trials
    value_us = check(best)
    assert answer.result.value_us == value_us
    assert {one.name for one in answer.trials} >= {one.name for one in candidates}
    assert all(value_us <= (one.value_us or value_us) for one in others)
    assert answer.result.bound_scope == BoundScope.CANDIDATES
    least = min(one.lower_bound_us for one in answer.trials if not one.is_impossible)
    assert answer.result.lower_bound_us == min(least, value_us)


def test_a_stop_ends_the_rungs(monkeypatch: pytest.MonkeyPatch) -> None:
    race, stop, options = serial_race(), threading.Event(), counted(1)
    stop.set()
    monkeypatch.setattr(cut_halving.CutHalving, "_anneal", lambda *_, **__: pytest.fail("annealed"))
    CutHalving(race, options, options.clock(stop)).run(0.6, lambda _: None, lambda: None)


@pytest.mark.slow
@pytest.mark.parametrize("choice", [(), None])
def test_one_cut_is_searched_and_it_alone_has_a_bound(choice: Choice) -> None:
    reports: list[Sequence[Trial]] = []
    asked = [chosen(choice)], CASE.profile, Partitioning.SEARCHED, counted(4)
    answer = solve_best_of(*asked, watch=SearchWatch(on_trials=reports.append))
    (trial,) = answer.trials
    # Whoever is told of the trials knows of the cut that is left before it is searched.
    assert [len(told) for told in reports[-2:]] == [1, 1]
    assert trial.num_searches
    value_us = check(trial)
    assert answer.result.value_us == value_us
    assert answer.result.bound_scope == BoundScope.PARTITION
    assert answer.result.problem.partition == trial.problem.partition
    assert all(value_us <= check(one) for one in listed())


def test_cuts_left_out_come_back_best_first_where_they_can_win() -> None:
    race = serial_race()
    best, *others = race.ranked()
    race.keep_only(best)
    assert (race.trials, race.bound_scope) == ([best], BoundScope.PARTITION)
    value_us = best.value_us
    best.is_over, others[1].lower_bound_us = True, value_us or 0
    while race.take_back():
        pass
    del others[1]
    assert (race.trials, race.bound_scope) == ([best, *others], BoundScope.CANDIDATES)


def test_other_cuts_are_searched_once_the_best_one_is_solved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def solved(self: object, trial: Trial, options: SolveOptions) -> Result:
        assert trial.found is not None
        return replace(trial.found, stopped_by=StoppedBy.OPTIMAL)

    monkeypatch.setattr(_Race, "_solve", solved)
    options, watch = SolveOptions(HOURS_S, gap=0.0), SearchWatch()
    search = _Race([candidate_of(CASE)], CASE.profile, Partitioning.SEARCHED, options, watch)
    search.race.trials = all_cuts = serial_race().trials
    search.race.keep_only(all_cuts[1])
    search._spend_rest(is_one_cut=True)
    assert {id(one) for one in search.race.trials if one.is_over} == {*map(id, all_cuts)}
    assert len(all_cuts) > 2 and search.is_exhausted
