"""The comparison of all schedules: figures, own placements, the solver beside, refusals."""

import threading
from dataclasses import replace

import pytest

from synth.cli.answer.compare import as_text
from synth.costs.partition_costs import partition_costs
from synth.errors import SynthError
from synth.families import family_placement, generate, variants_for
from synth.objective import Objective
from synth.plan.compare import compare
from synth.plan.comparison import Comparison, Entry, Question, SearchRequest
from synth.plan.partition.balance import balance
from synth.plan.published.order_scores import Judge
from synth.plan.tuning import JUDGING
from synth.profile import Profile
from synth.profiles import find
from synth.schedule.placements import placement
from synth.schedule.rank_memory import peak_bytes
from synth.schedule.verify import verify
from synth.solver.options import SolveOptions
from tests.synth.effort import counted
from tests.synth.family_variants import family_variants

PROFILE = Profile.load(find("zb-1.5b-p8-m24"))


def entry(comparison: Comparison, name: str) -> Entry:
    return next(entry for entry in comparison.entries if entry.name == name)


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    caps = (45 * 10**9,) * 4
    return compare(Question(PROFILE, 4, 8, caps, Objective.PERIOD))


def test_every_family_is_compared_or_refused_with_its_rule(comparison: Comparison) -> None:
    compared = {entry.name.removesuffix("+R") for entry in comparison.entries}
    refused = {refusal.name for refusal in comparison.refusals}
    assert compared | refused == set(family_variants()) and not compared & refused
    assert all(refusal.reason for refusal in comparison.refusals)
    odd = compare(Question(PROFILE, 3, 8), ["chimera", "1f1b"])
    assert [(r.name, r.reason.split(",")[0]) for r in odd.refusals] == [
        ("chimera", "chimera needs an even number of ranks")
    ]


def test_rounds_that_divide_the_layers_are_compared_too() -> None:
    # 24 layers on 8 ranks: 16 stages have one or two each, 24 stages one.
    more = set(variants_for(8, 24)) - set(family_variants())
    assert {"interleaved:3", "breadth-first:3", "bitpipe-loop:3", "pipeoffload:3,full"} <= more
    assert set(variants_for(4, 24)) == set(family_variants())  # 8 stages of three
    even, uneven = compare(Question(PROFILE, 8, 24), ["interleaved:3", "interleaved:2"]).entries
    assert set(even.partition) == {1} and set(uneven.partition) == {1, 2}
    assert even.makespan_us < uneven.makespan_us


@pytest.mark.parametrize("name", ["1f1b", "interleaved:2", "chimera", "zb-v"])
def test_figures_are_those_of_the_family_on_its_own_partition(
    comparison: Comparison, name: str
) -> None:
    where, caps = family_placement(name, 4), comparison.question.caps_bytes
    found = entry(comparison, name)
    costs = partition_costs(PROFILE, found.partition)
    lowered, line = verify(generate(name, 4, 8, costs=costs), costs)
    assert found.schedule.placement == where
    on_balanced = partition_costs(PROFILE, balance(PROFILE, where, caps, 8))
    judge = Judge(Objective.PERIOD, caps)
    balanced = judge.score(*verify(generate(name, 4, 8, costs=on_balanced), on_balanced))
    assert judge.score(lowered, line) <= balanced
    assert (found.makespan_us, found.period_us) == (line.makespan_us, line.period_us)
    assert found.peak_bytes == peak_bytes(lowered)
    work_us = max(line.work_us)
    assert found.bubble_rates == (1 - work_us / line.makespan_us, 1 - work_us / line.period_us)
    assert caps is not None and found.fits == (max(found.peak_bytes) <= caps[0])


def test_traffic_is_what_transfers_and_reductions_move(comparison: Comparison) -> None:
    # 1F1B: 8 micro-batches over 3 boundaries, forth and back. Chimera sends as much, and adds up
    # the gradients of 4 stages between 2 copies: each byte crosses two links.
    costs = partition_costs(PROFILE, entry(comparison, "1f1b").partition)
    boundaries = sum(stage.output_bytes for stage in costs.stages[:-1])
    assert entry(comparison, "1f1b").sent_bytes == 2 * 8 * boundaries
    assert entry(comparison, "1f1b").reduced_bytes == 0
    chimera = entry(comparison, "chimera")
    stages = partition_costs(PROFILE, chimera.partition).stages
    assert chimera.reduced_bytes == 2 * sum(stage.gradient_bytes for stage in stages)
    assert sum(chimera.static_bytes) == 2 * sum(stage.static_bytes for stage in stages)


def test_the_best_by_the_objective_comes_first(comparison: Comparison) -> None:
    values = [entry.period_us for entry in comparison.ranked()]
    assert values == sorted(values)


def test_the_solver_stands_beside_on_its_placements_and_is_no_worse() -> None:
    question = Question(PROFILE, 4, 8, (30 * 10**9,) * 4)
    searches = [SearchRequest(name, placement(name, 4)) for name in ("linear", "bidirectional")]
    told: list[str] = []
    found = compare(question, ["1f1b", "chimera"], searches, counted(0.2, gap=0.01), told.append)
    assert told == ["1f1b", "chimera", "solved linear", "solved bidirectional"]
    for name, baseline in (("solved linear", "1f1b"), ("solved bidirectional", "chimera")):
        ours, theirs = entry(found, name), entry(found, baseline)
        assert ours.fits and ours.lower_bound_us is not None
        assert ours.lower_bound_us <= ours.makespan_us
        assert not theirs.fits or ours.makespan_us <= theirs.makespan_us
        gap = ours.gap(Objective.MAKESPAN)
        assert gap is not None and 0 <= gap < 1 and theirs.gap(Objective.MAKESPAN) is None


def test_no_schedule_is_left_out_for_lack_of_time_but_where_there_are_many_ops() -> None:
    at_once, names = SolveOptions(time_limit_s=1e-6), ["1f1b", "gpipe", "zb-v", "chimera"]
    assert len(compare(Question(PROFILE, 4, 8), names, options=at_once).entries) == len(names)
    found = compare(Question(PROFILE, 4, 9_000), names[:2], options=at_once)
    assert [one.name for one in found.entries] == ["1f1b"]
    assert "time limit of 1e-06 s" in found.refusals[0].reason


def test_a_cap_that_nothing_fits_refuses_the_solver_not_the_families() -> None:
    question = Question(PROFILE, 4, 8, (10**9,) * 4)
    found = compare(question, ["1f1b"], [SearchRequest("linear", placement("linear", 4))])
    assert [entry.fits for entry in found.entries] == [False]
    assert [refusal.name for refusal in found.refusals] == ["solved linear"]


def test_a_partition_given_holds_for_placements_of_as_many_stages() -> None:
    found = compare(Question(PROFILE, 4, 8, partition=(5, 7, 6, 6)), ["1f1b", "zb-v"])
    assert entry(found, "1f1b").partition == (5, 7, 6, 6)
    assert len(entry(found, "zb-v").partition) == 8


def test_too_few_layers_refuse_a_placement_and_an_unknown_name_is_an_error() -> None:
    found = compare(Question(PROFILE, 8, 8), ["hanayo:2", "1f1b"])
    assert [refusal.name for refusal in found.refusals] == ["hanayo:2"]
    assert "32 stages asked for" in found.refusals[0].reason
    with pytest.raises(SynthError, match="family '2f2b' is unknown"):
        compare(Question(PROFILE, 4, 8), ["1f1b", "2f2b"])


def test_a_stop_leaves_out_what_was_not_reached() -> None:
    stop = threading.Event()
    stop.set()
    searches = [SearchRequest("linear", placement("linear", 4))]
    assert compare(Question(PROFILE, 4, 8), ["1f1b"], searches, stop=stop).entries == []


def test_schedules_whose_search_the_time_limit_ended_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their rows are not their best: with enough time none is named."""
    question = Question(PROFILE, 4, 8, (30 * 10**9,) * 4)
    names = ["1f1b", "zb-h1"]
    assert compare(question, names, options=counted()).ended_early == []
    monkeypatch.setattr("synth.plan.compare.JUDGING", replace(JUDGING, first_ops=0))
    short = compare(question, names, options=SolveOptions(1e-6))
    assert short.ended_early == ["1f1b"]  # and the other one is not simulated
    assert [refusal.name for refusal in short.refusals] == ["zb-h1"]
    assert "allow more --time-limit" in as_text(short, 300)
