"""The solver's benchmark suites: their problems are what they say, their judgement can fail."""

import json
import math
import random
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import (
    auto_placement,
    flush_free_rival,
    more_memory,
    offloading,
    plain_annealing,
    realistic_profiles,
    realistic_suite,
    slow_links,
    tables,
    tight_caps,
    two_sites,
    unequal_ranks,
    weight_search,
)
from benchmarks.solver import report
from benchmarks.solver.__main__ import main
from benchmarks.solver.baselines import averaged, published, share_of_1f1b
from benchmarks.solver.case import Known, Suite, measure
from benchmarks.solver.suites import SUITES, bidirectional, table, unequal, v_shaped
from synth.families import generate
from synth.op_kinds import OpKind
from synth.schedule.placements import placement
from synth.search.outcome import StoppedBy
from synth.solver.evaluate.evaluate import evaluate
from synth.solver.infeasibility import find_shortage
from synth.solver.options import Part, SolveOptions
from synth.solver.problem import Problem
from synth.solver.result import Result, judged_result
from synth.solver.solver import solve
from synth.solver.weight_passing.bounds import prove_weight_passing
from synth.solver.weight_passing.problem import WeightMovement

SMALL = next(case for case in SUITES["table"].cases() if case.label == "4,8,1.5")


@pytest.mark.parametrize("name", SUITES)
def test_every_row_of_a_suite_can_be_solved_and_told_from_the_others(name: str) -> None:
    cases = list(SUITES[name].cases())
    assert len({case.label for case in cases}) == len(cases) > 1
    assert [case.label for case in cases if find_shortage(case.problem)] == []


def test_the_table_s_shares_are_of_1f1b_s_memory() -> None:
    costs = table.problem(8, 32, 1).costs
    assert share_of_1f1b(costs, 32, 1) == 3 * 8
    assert share_of_1f1b(costs, 32, 0.6) == 14


def test_at_a_family_s_own_peak_it_fits_and_below_it_does_not() -> None:
    cases = {case.label: case.problem for case in SUITES["v"].cases()}
    for family in v_shaped.FAMILIES:
        problem = cases[f"4,16 1:1:1 +2/-1/-1 as {family}"]
        assert problem.caps_bytes is not None
        tighter = replace(problem, caps_bytes=tuple(cap - 1 for cap in problem.caps_bytes))
        assert _fits(family, problem) and not _fits(family, tighter)


def _fits(family: str, problem: Problem) -> bool:
    return next(rival.fits for rival in published(problem) if rival.name == family)


def test_a_whole_backward_takes_as_long_as_its_parts_and_leaves_nothing_to_w() -> None:
    split, whole = (bidirectional.problem("bidirectional", 4, 8, how) for how in (True, False))
    assert split.caps_bytes == whole.caps_bytes
    for parts, one in zip(split.costs.stages, whole.costs.stages, strict=True):
        assert parts.work_us == one.work_us == 300
        assert one.duration_us[OpKind.W] == one.saved_w_bytes == 0


def test_averages_keep_the_total_time_of_all_stages() -> None:
    costs = unequal.with_head(2)
    even = averaged(costs)
    assert len({stage.work_us for stage in even.stages}) == 1
    totals = [sum(stage.work_us for stage in each.stages) for each in (costs, even)]
    assert totals[0] == pytest.approx(totals[1], abs=3 * len(costs.stages))


def test_a_run_is_saved_and_printed_again_as_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "table.json"
    assert main(["table", "--only", SMALL.label, "--time-limit", "60", "--json", str(saved)]) == 0
    (row,) = json.loads(saved.read_text())["rows"]
    # The last rank begins behind 3 F's and transfers, 171, and has 8 · 148 to do.
    assert row["value_us"] == row["bound_us"] == 1355
    capsys.readouterr()
    assert main(["--markdown", str(saved)]) == 0
    printed = capsys.readouterr().out
    assert "| 4,8,1.5 |" in printed and "| 1355 | 1355 | 0.00 |" in printed


def test_a_run_of_several_seeds_goes_on_where_it_was_cut_off(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "table.json"
    asked = ["table", "--only", SMALL.label, "--seeds", "2", "--time-limit", "60"]
    asked += ["--json", str(saved)]
    assert main(asked) == 0
    document = json.loads(saved.read_text())
    assert [row["seed"] for row in document["rows"]] == [0, 1]
    document["rows"] = document["rows"][:1]
    document["rows"][0]["found_by"] = "kept as it is"
    saved.write_text(json.dumps(document))
    assert main([*asked, "--resume"]) == 0
    rows = json.loads(saved.read_text())["rows"]
    assert [row["seed"] for row in rows] == [0, 1]
    assert rows[0]["found_by"] == "kept as it is" != rows[1]["found_by"]
    assert main([*asked, "--resume", "--time-limit", "7"]) == 2
    assert "time_limit_s 60.0, not 7.0" in capsys.readouterr().err


def test_a_file_of_an_earlier_format_or_a_damaged_one_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "old.json"
    for text in ('{"format": "synth-solver-benchmark", "rows": []}', '{"format": ', "[]"):
        saved.write_text(text)
        assert main(["--markdown", str(saved)]) == 2
        assert main(["table", "--only", SMALL.label, "--json", str(saved), "--resume"]) == 2
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == 2 and all(str(saved) in line for line in lines)


def test_rows_that_name_a_line_and_a_column_make_a_pivoted_table_of_medians() -> None:
    def row(seed: int, column: str, value_us: int, gap: float) -> dict[str, object]:
        cells = {"label": f"v {column}", "seed": seed, "cell": ["v", column]}
        return {**cells, "value_us": value_us, "gap_percent": gap}

    rows = [row(0, "all", 10, 0.0), row(1, "all", 14, 2.0), row(2, "all", 11, 1.0)]
    made = report.table({"rows": [*rows, row(0, "no exact", 12, 3.0)]})
    assert made.splitlines()[0] == "|  | all | no exact |"
    assert made.splitlines()[2] == "| v | 11 (1.00) | 12 (3.00) |"


def test_a_table_of_times_to_the_gap_counts_a_run_that_never_reaches_it_as_the_last() -> None:
    def row(name: str, seed: int, time_s: float | None) -> dict[str, object]:
        cells = {"label": name, "seed": seed, "cell": [name, "v"], "to_gap_s": time_s}
        return {**cells, "value_us": 10, "gap_percent": 0.5}

    rows = [row(name, seed, 2.0) for seed in range(3) for name in ("all", "late", "never")]
    for place in (1, 2, 5):  # late with seed 0, never with seeds 0 and 1
        rows[place]["to_gap_s"] = None
    lines = report.table({"rows": rows}).splitlines()[2:]
    assert lines[0] == "| all | 10 (0.50), 2.0 s |"
    assert lines[1] == "| late | 10 (0.50), 2.0 s |"
    assert lines[2] == "| never | 10 (0.50), – |"


def test_the_time_to_the_gap_is_that_of_the_run_with_all_parts() -> None:
    case = replace(SMALL, compared_with=SMALL.label)
    full = measure(case, 60, 1)
    assert full.gap_percent == 0 and full.to_gap_s is not None
    assert full.first_s is not None and full.first_s <= full.to_gap_s <= full.wall_s
    assert Part.CLOSED_FORMS in full.parts and Part.ANNEALING not in full.parts
    bounds = frozenset({Part.CLOSED_FORMS, Part.BOUNDS, Part.EXACT})
    unproven = replace(case, label="without bounds", without=bounds)
    assert measure(unproven, 0.2, 1, 0, full).to_gap_s is None
    half = replace(full, bound_us=0)  # a gap of 100 %, which the first schedule has
    row = measure(unproven, 0.2, 1, 0, half)
    assert row.to_gap_s == row.first_s is not None and not bounds & set(row.parts)


def test_a_part_that_takes_no_step_is_not_left_out_and_seeds_come_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    full = replace(SMALL, label="all", compared_with="all", known=None)
    parts = (Part.FAMILIES, Part.ANNEALING)  # without boundary tensors nothing is annealed
    cases = [replace(full, label=f"no {part}", without=frozenset({part})) for part in parts]
    monkeypatch.setitem(SUITES, "small", Suite("small", "", lambda: iter([full, *cases]), 60.0))
    saved = tmp_path / "small.json"
    asked = ["small", "--only", "no ", "--seeds", "2", "--json", str(saved)]
    assert main(asked) == 0
    rows = json.loads(saved.read_text())["rows"]
    found = [(row["label"], row["seed"]) for row in rows]
    assert found == [("all", 0), ("no families", 0), ("all", 1), ("no families", 1)]
    assert "no local search: not run; it takes no step in 'all'" in capsys.readouterr().out
    assert main([*asked, "--resume"]) == 0
    assert json.loads(saved.read_text())["rows"] == rows


def test_a_table_of_several_seeds_has_their_range_and_how_many_proved_it(tmp_path: Path) -> None:
    saved = tmp_path / "seeds.json"
    asked = ["table", "--only", SMALL.label, "--seeds", "3", "--json", str(saved)]
    assert main(asked) == 0
    document = json.loads(saved.read_text())
    value = document["rows"][0]["value_us"]
    document["rows"][1] |= {"value_us": value + 7, "gap_percent": 1.0}
    saved.write_text(json.dumps(document))
    page = "<!-- results: seeds unproven -->\n<!-- /results -->\n"
    new = tables.filled(page, tmp_path)
    assert "| values | proven by |" in new
    assert f"| {value} to {value + 7} | 2 of 3 |" in new


def test_tables_of_pages_are_those_of_the_saved_results(tmp_path: Path) -> None:
    saved = tmp_path / "small.json"
    assert main(["table", "--only", SMALL.label, "--time-limit", "60", "--json", str(saved)]) == 0
    page = "above\n<!-- results: small -->\nold\n<!-- /results -->\nbelow\n"
    new = tables.filled(page, tmp_path)
    assert "| 4,8,1.5 |" in new and "old" not in new and "below" in new
    assert tables.filled(new, tmp_path) == new
    assert "| 4,8,1.5 |" not in tables.filled(page.replace("small", "small unproven"), tmp_path)


def test_plans_and_published_schedules_are_saved_and_counted(tmp_path: Path) -> None:
    saved = tmp_path / "auto.json"
    asked = ["--cases", "1", "--first", "2", "--limit", "1", "--workers", "1", "--seeds", "2"]
    assert auto_placement.main([*asked, "--json", str(saved)]) == 0
    document = json.loads(saved.read_text())
    assert [row["seed"] for row in document["rows"]] == [0, 1]
    assert document["commit"] and document["time_limit_s"] == 1.0
    new = tables.filled("<!-- results: auto -->\n<!-- /results -->\n", tmp_path)
    assert "`auto-placement`: 1 generated profiles" in new and ", 2 seeds: medians." in new
    # On a busy machine a second may be too short for a plan that is no worse.
    values = [(row["auto_us"] or math.inf, row["published_us"]) for row in document["rows"]]
    worse = any(published is not None and auto > published for auto, published in values)
    assert f"\n| 1 | {worse:d} | " in new


def test_a_plan_that_is_worse_with_one_seed_counts_as_worse() -> None:
    def row(profile: int, seed: int, auto_us: int | None, published_us: int | None) -> object:
        name = None if published_us is None else "1f1b"
        row = auto_placement.Row(profile, seed, 2, 4, 4, None, auto_us, name, published_us)
        return row._asdict()

    rows = [row(0, 0, 90, 100), row(0, 1, 101, 100), row(0, 2, 80, 100), row(1, 0, 75, 100)]
    rows += [row(2, 0, 100, 100), row(3, 0, 5, None), row(4, 0, None, 100)]
    counts = auto_placement.table({"rows": rows}).splitlines()[-1]
    assert counts == "| 5 | 2 | 1 | 1 | 1 | 10.00 | 25.00 |"


def test_tight_caps_are_saved_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tight_caps, "optimum_us", lambda problem, seconds: None)  # takes seconds
    saved = tmp_path / "tight.json"
    asked = ["--only", "small", "--count", "1", "--seconds", "0.02", "--counted", "--seeds", "2"]
    assert tight_caps.main([*asked, "--json", str(saved)]) == 0
    rows = json.loads(saved.read_text())["rows"]
    assert [(row["name"], row["seed"]) for row in rows] == [("small 0", 0), ("small 0", 1)]
    new = tables.filled("<!-- results: tight -->\n<!-- /results -->\n", tmp_path)
    assert "0.02 counted seconds each" in new and "\n| 1 small | " in new


def test_the_annealer_is_better_where_its_median_is() -> None:
    def row(number: int, seed: int, value_us: int | None, annealed_us: int | None) -> object:
        gap = 1.0 if value_us is None else 0.1 * number
        ends = ("exhausted" if seed else "optimal", "windows", 1.0)
        row = tight_caps.Row(
            f"small {number}", seed, "", value_us, 1, None, gap, annealed_us, *ends
        )
        return row._asdict()

    rows = [row(0, 0, 9, 8), row(0, 1, 9, 10), row(0, 2, 9, 9), row(1, 0, 9, 8)]
    rows += [row(2, 0, None, 9), row(3, 0, 9, None)]
    counts = tight_caps.table({"rows": rows}).splitlines()[-1]
    assert counts == "| 4 small | 20.00 | 100.00 | 1 | 2 |"


def test_a_case_of_offloading_has_the_median_of_its_seeds() -> None:
    def row(seed: int, value_us: int | None) -> object:
        first = ("zb-1.5b-p8-m24", "linear", 25.0, 30.0, seed, 2_000_000, None)
        return offloading.Row(*first, value_us, 900_000, 7, "")._asdict()

    rows = [row(0, 1_500_000), row(1, 1_000_000), row(2, None)]
    line = offloading.table({"rows": rows}).splitlines()[-1]
    found = "2,000 | – | 1,500 | 7 | 0.750 | – | 40.0"
    assert line == f"| zb-1.5b-p8-m24 | linear | 25 | 30 | {found} |"


def test_a_case_of_weight_passing_has_the_median_of_its_seeds() -> None:
    def row(seed: int, value_us: int | None) -> object:
        first = ("ring", "10 GbE", 32_768, 2, seed, 37_300_000_000, "weipipe", 100_000_000)
        return weight_search.Row(*first, value_us, 60_000_000, "", "time limit", 9.0)._asdict()

    rows = [row(0, 80_000_000), row(1, 75_000_000), row(2, None)]
    line = weight_search.table({"rows": rows}).splitlines()[-1]
    shown = "ring | 10 GbE, 32k | 2 | 37.3 | weipipe | 100.00 | 77.50 | 60.00 | 25.0 | 22.5"
    assert line == f"| {shown} |"


def test_more_buffers_are_a_larger_limit_and_a_bound_no_higher() -> None:
    for movement, size in ((WeightMovement.RING, 3), (WeightMovement.GATHER, 2)):
        cases = [
            weight_search.weight_passing_problem(movement, "10 GbE", 32_768, n) for n in (1, 2)
        ]
        caps = [(one.problem.caps_bytes or (0,))[0] for one in cases]
        stage = cases[0].problem.costs.stages[0]
        assert stage.parameter_bytes == stage.gradient_bytes
        assert caps[1] - caps[0] == size * stage.parameter_bytes
        assert prove_weight_passing(cases[1]).bound_us <= prove_weight_passing(cases[0]).bound_us


def test_the_documentation_has_the_tables_of_the_saved_results() -> None:
    assert tables.main(["--check"]) == 0


def test_an_answer_that_contradicts_what_is_known_is_a_failure() -> None:
    too_good = replace(SMALL, known=Known(1356, 1356))
    too_bad = replace(SMALL, known=Known(1, 1354))
    assert measure(SMALL, 60, None).failures == ()
    assert measure(too_good, 60, None).failures == ("the value 1355 is below a proven bound",)
    assert "above a value found before" in measure(too_bad, 60, None).failures[0]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["table", "--only", "nothing"], "no row of table has 'nothing'"),
        (["table", "--time-limit", "0"], "the time limit is 0 s"),
        (["table", "--json", "/no/such/folder/out.json"], "lies in no folder"),
        (["--markdown", "/no/such/file.json"], "cannot be read"),
    ],
)
def test_bad_requests_are_one_message(
    given: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(given) == 2
    assert said in capsys.readouterr().err


def test_realistic_pipelines_are_the_same_each_time_and_of_the_sizes_promised() -> None:
    for seed in range(10):
        case = realistic_profiles.realistic_case(seed)
        assert case == realistic_profiles.realistic_case(seed)
        assert 4 <= case.num_ranks <= 16 and 8 <= case.num_micro_batches <= 64
        where = placement(case.placement, case.num_ranks)
        assert len(case.profile.layers) >= where.num_stages


def test_unequal_ranks_are_one_slow_one_half_of_them_or_all() -> None:
    slow = []
    for number in range(12):
        case = unequal_ranks.unequal_case(number)
        assert case == unequal_ranks.unequal_case(number)
        assert len(case.speeds) == len(case.caps_bytes) == case.pipeline.num_ranks
        assert 0.5 <= min(case.speeds) <= max(case.speeds) <= 1
        slow.append(sum(speed < 1 for speed in case.speeds) / len(case.speeds))
    assert min(slow) < 0.3 < 0.5 in slow
    assert max(slow) > 0.8


def test_a_plan_is_worse_than_the_best_within_any_smaller_limit() -> None:
    row = more_memory.Row(0, 0, "v", 4, 8, (None, 100, 110, 90, 90, 99))
    assert row.rises_percent == pytest.approx([10, 10])
    line = more_memory.table({"rows": [row._asdict()]}).splitlines()[-1]
    assert line == "| v | 1 | 5 | 2 | 10.00 |"


def test_a_slow_link_is_between_the_ranks_in_the_middle() -> None:
    links = more_memory.with_slow_link(realistic_profiles.realistic_case(1)).profile.links
    assert links is not None
    assert [(one.source, one.target) for one in links.pairs] == [(1, 2), (2, 1)]
    assert all(one.latency_us > links.default.latency_us for one in links.pairs)


def test_slow_links_are_one_some_or_all_and_take_a_share_of_a_forward() -> None:
    numbers = []
    for number in range(12):
        case = slow_links.slow_case(number)
        assert case == slow_links.slow_case(number)
        profile, count = case.pipeline.profile, case.pipeline.num_ranks
        layers = [profile.layer_profile(place) for place in range(len(profile.layers))]
        forward_us = sum(layer.time_us[OpKind.F].median_us for layer in layers) / count
        num_bytes = max(layer.output_bytes for layer in layers)
        for rank in range(count - 1):
            assert profile.links is not None
            ends = (rank, rank + 1), (rank + 1, rank)
            us = [profile.links.between(*pair).transfer_us(num_bytes) for pair in ends]
            slow_us = case.share * forward_us if rank in case.slow else 170
            assert us == pytest.approx([slow_us, slow_us], abs=1.5)
        numbers.append(len(case.slow) / (count - 1))
    assert min(numbers) < 0.3 and max(numbers) == 1


def test_the_table_of_slow_links_ends_with_its_median_gap() -> None:
    plan = slow_links.Row(0, "v", 4, 8, (0, 1, 2), 0.5, 100, 98, (1,) * 8, "v-min", 120)
    worse = plan._replace(case=1, slow=(1,), plan_us=125, bound_us=120)
    none = plan._replace(case=2, plan_us=None)
    _, _, first, second, third, _, last = slow_links.table(
        {"rows": [row._asdict() for row in (plan, worse, none)]}
    ).splitlines()
    assert "| all: 0.5 F |" in first and "| 2.00 |" in first
    assert "| after 1: 0.5 F |" in second and "| none |" in third
    assert last == (
        "2 plans: the median gap is 3.00 %, the largest 4.00 %; 2 are above a published schedule."
    )


def test_plain_annealing_shortens_a_published_plan_and_keeps_an_optimal_one() -> None:
    problem, limits = SMALL.problem, SolveOptions(10, workers=1)
    judged = evaluate(problem, generate("zb-h1", 4, 8), "zb-h1")
    best = solve(problem, limits)
    assert judged is not None and best.stopped_by == StoppedBy.OPTIMAL
    plans = [judged_result(problem, judged, 0), best]
    of_published, of_best = (plain_annealing.annealed_us(plan, 0.4, seed=0) for plan in plans)
    assert of_best == best.value_us
    assert of_published is not None and of_best is not None
    assert of_best <= of_published < judged.value_us
    nothing = Result.without_schedule(problem, StoppedBy.TIME_LIMIT, "")
    assert plain_annealing.annealed_us(nothing, 1, seed=0) is None


def test_the_table_of_plain_annealing_has_gains_on_the_plan() -> None:
    row = plain_annealing.Row(3, 0, "v", 4, 8, 2_000, 1_900, 1_990, None)
    line = plain_annealing.table({"rows": [row._asdict()]}).splitlines()[-1]
    assert line == "| 3 | v, 4 ranks, 8 micro-batches | 0.002 | 5.00 | 0.50 % |  |"


@pytest.mark.parametrize("sites", [2, 3])
def test_sites_are_of_consecutive_ranks_and_as_large_as_each_other(sites: int) -> None:
    for number in range(6):
        case = two_sites.two_sites(number, sites)
        assert case.profile.links is not None
        (apart,) = case.profile.links.nodes
        assert len({rank // apart.ranks_per_node for rank in range(case.num_ranks)}) <= sites
        assert 5_000 <= apart.latency_us <= 50_000


def test_the_rival_counts_activations_and_versions_as_one_memory() -> None:
    asked = flush_free_rival.case(4)
    rival = flush_free_rival.Rival(asked)
    made = next(one for seed in range(20) if (one := rival.order(random.Random(seed))))
    assert all(len(program) == 180 for program in made)
    # One activation and one version fit, or two activations, never two and one.
    first, stage = rival.ranks[0], asked.problem.costs.stages[0]
    assert stage.saved_bytes + stage.parameter_bytes <= rival.rooms[0]
    assert 2 * stage.saved_bytes + stage.parameter_bytes > rival.rooms[0] >= 2 * stage.saved_bytes
    assert max(first.read) > 0


def test_realistic_rows_count_what_is_above_the_published_and_the_equal() -> None:
    def row(case: int, plan_us: int, published_us: int | None, equal_us: int) -> object:
        sizes = ("v", 4, 8, 8, plan_us, 90, (1,) * 8, "zb-v", published_us, equal_us)
        return realistic_suite.Row(case, 0, *sizes)._asdict()

    rows = [row(0, 100, 80, 100), row(1, 120, 130, 100), row(2, 90, None, 99)]
    line = realistic_suite.table({"rows": rows}).splitlines()[-1]
    assert line == "| v | 3 | 10.00 | 25.00 | 1 | 25.00 | 1 | 20.00 |"
