"""`synth compare`: the table, the picture, the files, and what it refuses."""

import json
import re
import threading
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from synth.cli.answer.compare_page import write_compare_page
from synth.options.arguments.compare import CompareArguments
from synth.options.profiles import load_profile
from synth.options.question import read_comparison
from synth.plan.compare import compare
from synth.plan.comparison import Comparison, Question
from synth.plan.comparison_entries import so_far
from synth.schedule.files.plan_file import Plan
from synth.schedule.recomputed_stages import recomputed
from synth.search.outcome import StoppedBy
from synth.solver.result import Incumbent
from tests.cli.conftest import NAME, Synth

SIZE = ("--ranks", "4", "--micro-batches", "8")
SOME = ("--only", "1f1b", "--only", "interleaved:2,group=5", "--only", "chimera", "--only", "gpipe")


def test_it_answers_with_all_families_the_solver_and_a_picture(
    synth: Synth, tmp_path: Path
) -> None:
    ended = synth(
        "compare", NAME, *SIZE, "--placement", "linear", "--mem-limit", "35GB",
        "--time-limit", "2s", "--svg", tmp_path / "c.svg",
    )  # fmt: skip
    assert ended.code == 0, ended.stderr
    table = ended.stdout.split("\n\n")[0]
    rest = ended.stdout.removeprefix(table)
    assert [line for line in rest.split("\n") if len(line) > 80] == []
    assert all(len(line) <= 88 for line in table.split("\n"))
    assert re.search(r" pipedream:vertical .* 3  (yes|no)$", table, re.MULTILINE)
    for name in ("1f1b", "interleaved:2", "chimera", "bitpipe:1", "gems", "solved linear", "zb-v"):
        assert f" {name} " in table
    spans = [float(span.replace(",", "")) for span in re.findall(r"  ([\d,]+\.\d)  .*\n?", table)]
    assert spans == sorted(spans) and len(spans) > 15
    assert "lower bound" in ended.stdout and "┊ memory limit" in ended.stdout
    assert "not applicable:\n  dualpipe-v  " not in ended.stdout
    assert "searching on linear" in ended.stderr
    ET.parse(tmp_path / "c.svg")


def test_a_page_has_the_table_the_plot_and_the_chart_of_every_schedule(
    synth: Synth, tmp_path: Path
) -> None:
    html = tmp_path / "page.html"
    only = ("--only", "1f1b", "--only", "zb-h1", "--only", "gpipe", "--mem-limit", "30GB")
    plots = [tmp_path / name for name in ("plot.png", "plot.pdf", "plot.svg")]
    asked = [word for path in plots for word in ("--picture", path)]
    plain = (*only, "--recompute", "none")  # no rows with recomputed layers
    ended = synth("compare", NAME, *SIZE, "--no-solve", *plain, "--html", html, *asked)
    assert ended.code == 0, ended.stderr
    assert [path.read_bytes()[:4] for path in plots] == [b"\x89PNG", b"%PDF", b"<svg"]
    found = re.search(r'id="data">(.*?)</script>', html.read_text(), re.S)
    assert found is not None
    page = json.loads(found[1])
    assert {chart["reason"] for chart in page["charts"]} == {""}  # the solver found none of them
    names = [chart["title"] for chart in page["charts"]]
    assert sorted(names) == ["1f1b", "gpipe", "zb-h1"]
    assert page["menu"]["names"] == names == [row[0] for row in page["menu"]["rows"]]
    assert page["menu"]["columns"][-1] == "fits"
    assert all(f'data-name="{name}"' in page["menu"]["svg"] for name in names)
    html.write_text("mine")
    assert synth("compare", NAME, *SIZE, "--no-solve", *only, "--html", html).code == 2
    ended = synth("compare", NAME, *SIZE, "--no-solve", "--picture", tmp_path / "plot.gif")
    assert ended.code == 2 and "ends in .svg, .png, .pdf" in ended.stderr
    assert html.read_text() == "mine"


def test_a_second_row_of_the_solver_may_recompute(synth: Synth, tmp_path: Path) -> None:
    ended = synth(
        "compare", NAME, *SIZE, "--only", "1f1b", "--mem-limit", "24GB", "--time-limit", "2s",
        "--placement", "linear", "--partition", "even", "--recompute", "auto",
        "--format", "json", "--save", tmp_path,
    )  # fmt: skip
    assert ended.code == 0, ended.stderr
    assert "searching on linear, stages may recompute" in ended.stderr
    found = json.loads(ended.stdout)
    names = [schedule["name"] for schedule in found["schedules"] if schedule["fits"]]
    assert sorted(names) == ["1f1b+R", "solved linear", "solved linear+R"]
    plan = Plan.load(tmp_path / "solved-linear+R.json")
    plan.check()
    assert recomputed(plan.schedule())


def test_the_solver_has_one_row_that_is_over_all_placements_if_nothing_is_said(
    synth: Synth, tmp_path: Path
) -> None:
    ended = synth(
        "compare", NAME, *SIZE, "--only", "1f1b:recompute", "--mem-limit", "24GB",
        "--time-limit", "3s", "--format", "json", "--save", tmp_path,
    )  # fmt: skip
    assert ended.code == 0, ended.stderr
    best, other = json.loads(ended.stdout)["schedules"]
    assert (best["name"], other["name"]) == ("solved auto", "1f1b:recompute")
    for row in (best, other):
        assert row["mean_idle_of_makespan"] >= row["bubble_rate_of_makespan"] - 1e-9
        assert row["tokens_per_second"] > 0
    Plan.load(tmp_path / "solved-auto.json").check()


@pytest.mark.parametrize("limit", ["0", "0s", "0.0ms"])
def test_a_limit_of_no_time_is_refused(synth: Synth, limit: str) -> None:
    ended = synth("compare", NAME, *SIZE, "--time-limit", limit)
    assert (ended.code, ended.stdout) == (2, "")
    assert f"--time-limit {limit} leaves no time to search" in ended.stderr


@pytest.mark.parametrize("recompute", ["all", "0,1"])
def test_on_all_placements_stages_have_no_numbers(synth: Synth, recompute: str) -> None:
    ended = synth("compare", NAME, *SIZE, "--recompute", recompute)
    assert (ended.code, ended.stdout) == (2, "")
    assert "is for one placement; with --placement auto give auto or none" in ended.stderr


def test_json_has_every_field_for_every_rank(synth: Synth) -> None:
    ended = synth(
        "compare", NAME, *SIZE, *SOME, "--no-solve", "--mem-limit", "60GB,50GB,50GB,50GB",
        "--objective", "period", "--format", "json",
    )  # fmt: skip
    found = json.loads(ended.stdout)
    assert [s["name"] for s in found["schedules"]] == [
        s["name"] for s in sorted(found["schedules"], key=lambda s: s["period_us"])
    ]
    assert {s["name"] for s in found["schedules"]} >= {"1f1b", "interleaved:2,group=5", "chimera"}
    for schedule in found["schedules"]:
        assert len(schedule["peak_bytes"]) == len(schedule["static_bytes"]) == 4
        caps = zip(schedule["peak_bytes"], found["caps_bytes"], strict=True)
        assert schedule["fits"] == all(peak <= cap for peak, cap in caps)
        assert schedule["lower_bound_us"] is None and schedule["gap"] is None
    assert any(schedule["on_front"] for schedule in found["schedules"])
    assert found["refused"] == []


def test_the_schedules_that_cannot_be_are_named_with_their_rule(synth: Synth) -> None:
    ended = synth("compare", NAME, "--ranks", "3", "--micro-batches", "6", *SOME, "--no-solve")
    assert ended.code == 0
    refused = ended.stdout.split("not applicable:\n")[1]
    assert refused.strip() == "chimera  chimera needs an even number of ranks, given 3"


def test_every_row_can_be_saved_checked_and_started_from(synth: Synth, tmp_path: Path) -> None:
    ended = synth("compare", NAME, *SIZE, *SOME, "--no-solve", "--save", tmp_path / "plans")
    assert "4 schedule files" in ended.stderr
    files = sorted(path.name for path in (tmp_path / "plans").iterdir())
    assert files == ["1f1b.json", "chimera.json", "gpipe.json", "interleaved-2-group-5.json"]
    for name in files:
        Plan.load(tmp_path / "plans" / name).check()
    hint = tmp_path / "plans" / "1f1b.json"
    ended = synth("solve", NAME, *SIZE, "--hint", hint, "--time-limit", "1s", "--format", "json")
    assert ended.code == 0, ended.stderr


def test_a_solved_schedule_is_saved_with_its_objective_and_proof(
    synth: Synth, tmp_path: Path
) -> None:
    ended = synth(
        "compare", NAME, "--ranks", "4", "-m", "4", "--only", "1f1b", "--objective", "period",
        "--placement", "linear", "--time-limit", "1s", "--format", "json", "--save", tmp_path,
    )  # fmt: skip
    rows = {row["name"]: row for row in json.loads(ended.stdout)["schedules"]}
    row, plan = rows["solved linear"], Plan.load(tmp_path / "solved-linear.json")
    plan.check()
    claim = plan.claim
    assert (claim.objective, claim.value_us) == ("period", row["period_us"])
    assert (claim.lower_bound_us, claim.gap) == (row["lower_bound_us"], row["gap"])
    assert claim.stopped_by != "not searched"
    assert Plan.load(tmp_path / "1f1b.json").claim.stopped_by == "not searched"


def test_a_folder_keeps_the_files_that_synth_did_not_make(synth: Synth, tmp_path: Path) -> None:
    notes = tmp_path / "1f1b.json"
    notes.write_text('{"mine": 1}')
    words = ("compare", NAME, *SIZE, *SOME, "--no-solve", "--save", tmp_path)
    ended = synth(*words)
    assert ended.code == 2
    assert "1f1b" in ended.stdout and "3 schedule files" in ended.stderr
    assert ended.stderr.endswith(
        f"error: --save {notes} would replace a file that is not a synth-schedule file; give "
        f"another --save, or --force to replace it\n"
    )
    assert notes.read_text() == '{"mine": 1}'
    Plan.load(tmp_path / "gpipe.json").check()
    assert synth(*words, "--force").code == 0
    Plan.load(notes).check()
    assert synth(*words).code == 0


def test_what_is_named_twice_is_looked_at_once(synth: Synth, tmp_path: Path) -> None:
    ended = synth(
        "compare", NAME, *SIZE, "--only", "1f1b", "--only", "1f1b", "--placement", "linear",
        "--placement", "linear", "--time-limit", "1s", "--save", tmp_path,
    )  # fmt: skip
    assert "2 schedule files" in ended.stderr and len(list(tmp_path.iterdir())) == 2
    assert ended.stderr.count("searching on linear") == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--only", "2f2b"), "family '2f2b' is unknown"),
        (("--only", "interleaved:2,depth=3"), "interleaved takes a number of rounds from 2"),
        (("--placement", "w"), "placement 'w' is unknown"),
        (("--planner", "gpipe"), "--planner 'gpipe' is unknown; give pipedream or 2bw"),
        (("--recompute", "all"), "--no-solve leaves the solver out"),
        (("--versions", "stash"), "--versions stash is for the solver, and --no-solve leaves"),
        (("--weights", "ring"), "--weights ring is for the solver, and --no-solve leaves"),
        (("--mem-limit", "min"), "which only synth solve does"),
        (("--mem-limit", "9999999999TB"), "is more than 1024TiB"),
        (("-m", "100000000"), "give at most 125,000 micro-batches"),
        (("--svg", "no/such/c.svg"), "folder no/such is missing"),
        (("--partition", "6,x"), "--partition '6,x' is not understood"),
        (("--partition", "6,6"), "covers 12 layers, the profile has 24"),
        (("--partition", "12,12"), "the partition has 2 stages, the placements asked for have 4"),
    ],
)
def test_a_bad_argument_ends_in_2(synth: Synth, arguments: tuple[str, ...], words: str) -> None:
    ended = synth("compare", NAME, *SIZE, "--no-solve", *arguments)
    assert (ended.code, ended.stdout) == (2, "")
    assert words in ended.stderr


def test_the_choices_of_published_planners_are_rows_with_their_predictions(synth: Synth) -> None:
    """Without transfers and updates that take time, one rank for each stage takes what is said."""
    ended = synth(
        "compare", NAME, "--ranks", "4", "-m", "24", "--no-solve", "--only", "pipedream",
        "--planner", "pipedream", "--planner", "2bw", "--mem-limit", "60GB", "--format", "json",
    )  # fmt: skip
    rows = {row["name"]: row for row in json.loads(ended.stdout)["schedules"]}
    planned = {name: row for name, row in rows.items() if name.startswith("planned ")}
    assert len(planned) == 2 and rows["pipedream"]["prediction"] is None
    for row in planned.values():
        assert row["prediction"]["time_us"] <= row["steady_us"]
        assert row["prediction"]["bound_by"].startswith("compute of ")
        assert sum(row["partition"]) == 24


def test_a_planner_that_finds_nothing_says_why(synth: Synth) -> None:
    ended = synth(
        "compare", NAME, "--ranks", "4", "-m", "8", "--no-solve", "--only", "pipedream",
        "--planner", "2bw", "--planner", "pipedream", "--mem-limit", "3GB", "--width", "200",
    )  # fmt: skip
    refused = ended.stdout.split("not applicable:\n")[1]
    assert "planned 2bw        no configuration of PipeDream-2BW on up to 4 ranks fits" in refused
    assert "planned pipedream  no choice of stages and replicas on 4 ranks fits in" in refused


def test_where_nothing_can_be_the_reasons_are_told(synth: Synth) -> None:
    ended = synth("compare", NAME, "--ranks", "3", "-m", "4", "--only", "chimera", "--no-solve")
    assert (ended.code, ended.stdout) == (4, "")
    assert "chimera: chimera needs an even number of ranks, given 3" in ended.stderr


def test_where_nothing_can_be_json_says_why(synth: Synth) -> None:
    command = ("compare", NAME, "--ranks", "3", "-m", "4", "--only", "chimera", "--no-solve")
    ended = synth(*command, "--format", "json")
    found = json.loads(ended.stdout)
    assert (ended.code, found["schedules"]) == (4, [])
    assert [refusal["name"] for refusal in found["refused"]] == ["chimera"]


def test_interrupted_before_the_first_schedule_it_ends_in_130(
    synth: Synth, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(work: Callable[[threading.Event], Any], *limits: Any) -> Any:
        stop = threading.Event()
        stop.set()
        return work(stop)

    monkeypatch.setattr("synth.cli.work.compare.run_interruptibly", interrupted)
    ended = synth("compare", NAME, *SIZE, "--only", "1f1b", "--no-solve")
    assert (ended.code, ended.stdout) == (130, "")
    assert "interrupted before the first schedule; run the same command again" in ended.stderr


def test_what_no_schedule_can_be_is_said_once_for_all_of_them(synth: Synth) -> None:
    ended = synth(
        "compare", "zb-1.5b-p8-m24", "--ranks", "48", "--micro-batches", "8", "--no-solve"
    )
    assert ended.code == 4
    assert ended.stderr.count("use 1 to 24 ranks") == 1
    assert "1f1b" in ended.stderr and "zb-h1" in ended.stderr


def test_a_search_of_the_solver_that_is_not_over_has_a_row_of_what_it_has_found() -> None:
    asked = read_comparison(
        CompareArguments.model_validate(
            {
                "pipeline": {"profile": NAME, "ranks": 2, "micro_batches": 4},
                "placement": ["linear"],
                "time_limit": "5s",
            }
        )
    )
    found = Comparison(asked.question)
    cut_short: list[Comparison] = []

    def improved(name: str, incumbent: Incumbent) -> None:
        cut_short.append(so_far(found, asked.options, StoppedBy.INTERRUPT))

    compare(asked.question, [], asked.searches, asked.options, so_far=found, on_found=improved)
    (row,) = cut_short[0].entries
    assert row.name == "solved linear" and row.claim is not None
    assert row.claim.stopped_by in (StoppedBy.INTERRUPT, StoppedBy.OPTIMAL)
    assert [entry.name for entry in found.entries] == ["solved linear"]
    assert so_far(found, asked.options, StoppedBy.INTERRUPT).entries == found.entries


def test_a_page_that_is_stopped_has_the_charts_that_are_shown_first(tmp_path: Path) -> None:
    question = Question(load_profile(NAME), 2, 4)
    comparison = compare(question, ["gpipe", "1f1b", "zb-h1", "zb-h2"])
    write_compare_page(tmp_path / "page.html", comparison, lambda: True)
    found = re.search(r'id="data">(.*?)</script>', (tmp_path / "page.html").read_text(), re.S)
    assert found is not None
    page, ranked = json.loads(found[1]), [entry.name for entry in comparison.ranked()]
    assert [chart["title"] for chart in page["charts"]] == ranked[:2]
    assert sorted(row[0] for row in page["menu"]["rows"]) == sorted(ranked)
