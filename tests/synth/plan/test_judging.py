"""Published schedules are judged before any trial, so an answer is no worse than one that fits."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from benchmarks.auto_placement import question
from synth.costs.partition_costs import partition_costs
from synth.costs.stage_costs import StageCosts
from synth.errors import SynthError
from synth.families import generate, names_on, variants_for
from synth.op_kinds import OpKind
from synth.options.profiles import load_profile
from synth.plan.choose import race
from synth.plan.choose.candidates import (
    Candidate,
    Partitioning,
    SearchWatch,
    Trial,
    placements_to_try,
)
from synth.plan.choose.judging import judge, offloading_trial
from synth.plan.choose.published import JudgedSchedules, Pass
from synth.plan.choose.race import solve_best_of
from synth.plan.choose.race_state import RaceState
from synth.plan.choose.ranking import interim_ranking
from synth.plan.compare import compare
from synth.plan.comparison import Question
from synth.plan.partition.balance import balance
from synth.plan.recompute.choice import Choice
from synth.plan.recompute.layer_choice import with_layers, without_layers
from synth.profile.links import Link, Links
from synth.schedule.model import Buffering
from synth.schedule.recomputed_stages import recomputed, without_recompute, written_out
from synth.schedule.verify import verify
from synth.search.best_so_far import BestSoFar
from synth.search.outcome import StoppedBy
from synth.solver.evaluate.evaluate import evaluate
from synth.solver.options import SolveOptions
from synth.solver.problem import Problem
from synth.solver.result import Baseline, Incumbent, Result
from tests.sweep import sweep
from tests.synth.effort import HOURS_S, counted
from tests.synth.plan.test_race import PROFILE

# Generated questions with a limit, and one without: 1F1B and others fit, or only what rebuilds.
SEEDS = (1, 2, 4, 7)


def candidates(asked: Question, choice: Choice = None) -> list[Candidate]:
    """Every placement that can be, cut evenly."""
    found = []
    for name, where in placements_to_try(asked.num_ranks, len(asked.profile.layers)).items():
        numbers = (asked.num_micro_batches, asked.caps_bytes)
        try:
            sizes = balance(asked.profile, where, asked.caps_bytes, asked.num_micro_batches)
            costs = partition_costs(asked.profile, sizes)
            problem = Problem(costs, where, *numbers, asked.objective, sizes)
        except SynthError:
            continue
        found.append(Candidate(name, problem, choice))
    return found


def judged(those: list[Candidate]) -> list[Trial]:
    """All passes, and what moves as candidates of their own."""
    race = RaceState(those, Partitioning.EVEN, 0.0)
    found = [race.new(candidate) for candidate in those]
    judge(found, lambda ops, step, needs_one: False, lambda trial: None)
    return [*found, *(one for trial in found if (one := offloading_trial(trial)) is not None)]


def least_us(found: list[Trial]) -> int | None:
    return min((one.value_us for one in found if one.value_us is not None), default=None)


def test_with_more_memory_no_start_is_longer() -> None:
    profile, found = load_profile("zb-1.5b-p8-m24"), []
    for cap in (15, 18, 21, 24, 27, 30, 33, 37, 45):
        found.append(least_us(judged(candidates(Question(profile, 4, 8, (cap * 10**9,) * 4)))))
    values = [value_us for value_us in found if value_us is not None]
    assert len(values) == len(found) and values == sorted(values, reverse=True)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_published_schedule_that_fits_is_among_the_starts(seed: int) -> None:
    asked = replace(question(seed), published_recompute=False)
    every = variants_for(asked.num_ranks, len(asked.profile.layers))
    cut_evenly = candidates(asked)
    best_us = None
    for candidate in cut_evenly:
        sizes = candidate.problem.partition
        on_it = replace(asked, partition=sizes, partition_is_sought=False)
        names = [name for name in names_on(candidate.problem.placement) if name in every]
        for entry in compare(on_it, names, options=SolveOptions(HOURS_S)).entries:
            if entry.fits is not False and not entry.delay:
                best_us = min(best_us or entry.makespan_us, entry.makespan_us)
    found = judged(cut_evenly)
    value_us = least_us(found)
    assert best_us is not None and value_us is not None and value_us <= best_us
    for one in found:
        if one.found is None or one.found.schedule is None:
            continue
        _, line = verify(one.found.schedule, one.problem.costs, asked.caps_bytes)
        assert line.makespan_us == one.value_us
        assert one.lower_bound_us <= line.makespan_us
        assert one.is_fixed != without_recompute(one.found.schedule).keeps_saved


def test_what_one_choice_alone_starts_from_the_three_together_do_too() -> None:
    asked = question(2)
    together = least_us(judged(candidates(asked)))
    assert together is not None
    for choice in ((), (0,), (0, 1), None):
        for candidate in candidates(asked, choice):
            if choice in ((0,), (0, 1)) and candidate.problem.costs.num_stages > 2:
                continue
            alone = least_us(judged([candidate]))
            assert alone is None or together <= alone


def test_more_memory_leaves_what_was_judged_no_slower() -> None:
    asked = question(4)
    assert asked.caps_bytes is not None
    before: int | None = None
    for percent in (90, 100, 120, 160, 300):
        caps = tuple(cap * percent // 100 for cap in asked.caps_bytes)
        value_us = least_us(judged(candidates(replace(asked, caps_bytes=caps))))
        assert before is None or (value_us is not None and value_us <= before)
        before = value_us


def layered_candidates(cap_bytes: int) -> list[Candidate]:
    """The shipped 1.5B model on 8 ranks, with its profile, so that layers may be recomputed."""
    profile, found = load_profile("zb-1.5b-p8-m24"), []
    for name in ("linear", "looped:3"):
        where = placements_to_try(8, 24)[name]
        sizes = balance(profile, where, (cap_bytes,) * 8, 24)
        costs = partition_costs(profile, sizes)
        problem = Problem(
            costs, where, 24, (cap_bytes,) * 8, partition=tuple(sizes), profile=profile
        )
        found.append(Candidate(name, problem, None))
    return found


def test_layers_are_chosen_and_orders_are_kept_with_the_fewest_stages_recomputing() -> None:
    linear, looped = judged(layered_candidates(18_000_000_000))
    assert linear.found is not None and linear.found.schedule is not None
    assert linear.problem.recomputed_layers and not recomputed(linear.found.schedule)
    _, line = verify(linear.found.schedule, linear.problem.costs, linear.problem.caps_bytes)
    assert line.makespan_us == linear.value_us
    whole = judged([replaced_profile(linear)])[0]
    assert whole.value_us is not None and linear.value_us is not None
    assert linear.value_us < whole.value_us
    assert looped.found is not None and looped.found.schedule is not None
    assert 0 < len(recomputed(looped.found.schedule)) < 24
    stages = recomputed(looped.found.schedule)
    for stage in stages:
        fewer = written_out(
            without_recompute(looped.found.schedule), [one for one in stages if one != stage]
        )
        least = replace(fewer, buffering=Buffering(0, 0))
        assert evaluate(looped.problem, fewer, "") is None
        assert evaluate(looped.problem, least, "") is None


def test_what_offloads_is_of_the_problem_without_recomputed_layers() -> None:
    cap_bytes = 30_000_000_000
    found = judged(layered_candidates(cap_bytes)[:1])
    layered, offloading = found
    assert layered.problem.recomputed_layers and offloading.is_fixed
    assert not offloading.problem.recomputed_layers
    assert offloading.found is not None and offloading.found.schedule is not None
    costs, caps = offloading.problem.costs, offloading.problem.caps_bytes
    _, line = verify(offloading.found.schedule, costs, caps)
    assert line.makespan_us == offloading.value_us


def replaced_profile(trial: Trial) -> Candidate:
    """The same candidate without a profile: only whole stages may be recomputed."""
    problem = without_layers(trial.candidate.problem)
    return trial.candidate.on(replace(problem, profile=None))


@pytest.mark.slow
@pytest.mark.parametrize("caps_gb", sweep([[16, 28], [16, 18, 20, 22, 24, 28]], daily=1))
def test_more_memory_leaves_what_was_judged_of_a_real_model_no_slower(
    caps_gb: list[int],
) -> None:
    before: int | None = None
    for cap_gb in caps_gb:
        value_us = least_us(judged(layered_candidates(cap_gb * 10**9)))
        assert before is None or (value_us is not None and value_us <= before)
        before = value_us


def test_without_a_choice_what_rebuilds_or_moves_is_a_row_and_no_answer() -> None:
    asked = question(4)
    for candidate in candidates(asked, ()):
        published = JudgedSchedules(candidate.problem, ())
        for step in Pass:
            published.run(step, lambda schedules=1: False)
        assert published.moved is None
        assert published.best is None or not recomputed(published.best.schedule)


def test_a_schedule_that_moves_can_be_the_answer_with_a_bound_that_holds_for_it() -> None:
    profile = PROFILE.replace(links=Links(host=Link(latency_us=1)))
    asked = Question(profile, 2, 6, (230, 230))
    moved = [one for one in judged(candidates(asked)) if one.is_fixed]
    assert moved
    for one in moved:
        assert one.found is not None and one.found.schedule is not None and one.value_us
        verify(one.found.schedule, one.problem.costs, asked.caps_bytes)
        assert not without_recompute(one.found.schedule).keeps_saved
        free = replace(one.problem, caps_bytes=None)
        assert one.lower_bound_us <= min(one.value_us, least_us(judged([Candidate("", free)])) or 0)


def test_where_no_trial_finds_anything_the_best_published_schedule_is_the_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = question(4)
    every = candidates(asked)

    def nothing(problem: Problem) -> Result:
        empty = (None, None, None, 0, None, None)
        return Result(problem, *empty, StoppedBy.TIME_LIMIT, (), 0.0, "nothing")

    monkeypatch.setattr(race, "solve_repartitioning", lambda p, problem, *given: nothing(problem))
    chosen = solve_best_of(every, asked.profile, options=counted(100))
    best_us = least_us(judged(every))
    value_us = chosen.result.value_us
    assert value_us is not None and best_us is not None and value_us <= best_us
    fitting = [baseline for baseline in chosen.result.baselines if baseline.fits]
    assert all(value_us <= baseline.makespan_us for baseline in fitting)
    assert chosen.result.lower_bound_us <= value_us


def test_without_time_every_placement_still_has_its_first_published_schedule() -> None:
    profile = load_profile("zb-1.5b-p8-m24")
    those = candidates(Question(profile, 4, 8, (30 * 10**9,) * 4))
    chosen = solve_best_of(those, profile, options=SolveOptions(1e-9))
    without_limit = {trial.name: trial for trial in judged(those)}
    for trial in chosen.trials:
        assert (trial.value_us is None) == (without_limit[trial.name].value_us is None), trial.name
        assert trial.published
    assert len(chosen.result.baselines) >= len(those)


def test_an_interim_ranking_keeps_what_is_known_of_every_placement() -> None:
    profile = load_profile("zb-1.5b-p8-m24")
    those = candidates(Question(profile, 4, 8, (30 * 10**9,) * 4))
    reports: list[Sequence[Trial]] = []
    so_far = BestSoFar[Incumbent]()
    solve_best_of(
        those,
        profile,
        options=SolveOptions(1e-9),
        watch=SearchWatch(so_far, on_trials=reports.append),
    )
    assert so_far.best is not None
    announced = so_far.best.as_result(1.0, StoppedBy.TIME_LIMIT)
    known = {trial.name: trial.value_us for trial in reports[-1]}
    chosen = interim_ranking(reports[-1], announced)
    assert chosen.is_interim and chosen.result.value_us == announced.value_us
    assert chosen.trials[0].value_us == announced.value_us
    assert {trial.name: trial.value_us for trial in chosen.trials} == known
    assert sum(value_us is not None for value_us in known.values()) >= 5
    assert len(chosen.result.baselines) >= len(those)
    assert chosen.result.lower_bound_us == announced.lower_bound_us


@pytest.mark.parametrize("layers", [(), (0,)])
def test_a_race_cut_short_has_a_bound_on_a_partition_that_no_trial_has(
    layers: tuple[int, ...],
) -> None:
    profile = load_profile("zb-1.5b-p8-m24")
    first = next(one for one in candidates(Question(profile, 2, 2, None)) if one.name == "linear")
    assert first.problem.partition is not None
    one, other = first.problem.partition
    sizes = (one + 1, other - 1)
    moved = replace(first.problem, costs=partition_costs(profile, sizes), partition=sizes)
    least_us = 2 * max(map(stage_time, moved.costs.stages))
    moved = with_layers(replace(moved, profile=profile), layers)
    found = evaluate(moved, generate("zb-h1", 2, 2), "zb-h1")
    assert found is not None
    announced = Incumbent(
        moved, 1.0, found.schedule, found.timeline, found.value_us, 1, "zb-h1", found.peak_bytes
    )
    slow = found.value_us + 1
    known = Baseline("zb-h1", slow, slow, work_us=1, peak_bytes=(1, 1), fits=True)
    trial = Trial(first, 1, published=(known, replace(known, name="1f1b")))
    chosen = interim_ranking([trial], announced.as_result(1.0, StoppedBy.TIME_LIMIT))
    assert least_us <= chosen.trials[0].lower_bound_us <= found.value_us
    rows = {row.name: row for row in chosen.result.baselines}
    assert rows["1f1b"].makespan_us == slow
    # A published schedule that is the plan stands at its best; rows are without recomputed layers.
    assert rows["zb-h1"].makespan_us == (slow if layers else found.value_us)
    assert rows["zb-h1"].partition == (None if layers else sizes)


def stage_time(stage: StageCosts) -> int:
    return sum(stage.duration_us[kind] for kind in (OpKind.F, OpKind.B, OpKind.W))
