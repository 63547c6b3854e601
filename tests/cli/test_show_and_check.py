"""`synth show` and `synth check`."""

import json
import re
from pathlib import Path

import pytest

from tests.cli.conftest import Synth


def test_show_draws_every_rank_and_says_of_what_each_number_is(
    synth: Synth, plan_file: Path
) -> None:
    ended = synth("show", plan_file, "--width", "100")
    assert (ended.code, ended.stderr) == (0, "")
    for part in (
        "4 ranks, 4 stages, 8 micro-batches of zb-1.5b-p8-m24 on NVIDIA A100 SXM 80G",
        "lower bound 735.1 ms",
        "of the makespan",
        "predicted from the profile",
        "rank 3  ",
        "headroom",
    ):
        assert part in ended.stdout
    rows = [line for line in ended.stdout.split("\n") if line.startswith("rank ") and "░" in line]
    assert len(rows) == 4
    assert {len(row) for row in rows} == {100}


def test_show_as_json_writes_nothing_but_json(synth: Synth, plan_file: Path) -> None:
    ended = synth("show", plan_file, "--format", "json")
    shown = json.loads(ended.stdout)
    assert ended.stderr == ""
    assert shown["makespan_us"] == max(
        op["end_us"] for rank in shown["ranks"] for op in rank["ops"]
    )
    assert [rank["rank"] for rank in shown["ranks"]] == [0, 1, 2, 3]


def test_check_says_what_it_has_verified_and_what_it_takes_on_trust(
    synth: Synth, plan_file: Path
) -> None:
    ended = synth("check", plan_file)
    assert ended.code == 0
    for part in (
        "is valid",
        "complete",
        "free of deadlock",
        "within its memory limit",
        "every field",
        "costs of every stage are those of profile zb-1.5b-p8-m24",
        "taken on trust:\n  bound  the lower bound, ",
        "of makespan for schedules with the same ops",
    ):
        assert part in ended.stdout


def test_check_as_json_writes_nothing_but_json(synth: Synth, plan_file: Path) -> None:
    assert json.loads(synth("check", plan_file, "--format", "json").stdout)["valid"] is True


@pytest.mark.parametrize("command", ["check", "show"])
def test_a_plan_that_is_not_what_it_claims_ends_in_5_and_names_the_op(
    synth: Synth, plan_file: Path, tmp_path: Path, command: str
) -> None:
    data = json.loads(plan_file.read_text())
    data["programs"][1] = data["programs"][1].replace("B1.3 ", "", 1)
    (tmp_path / "bad.json").write_text(json.dumps(data))
    ended = synth(command, tmp_path / "bad.json")
    assert ended.code == 5
    assert ended.stdout == ""
    assert ended.stderr == "error: rank 1: B1.3 is missing\n"


@pytest.mark.parametrize("command", ["check", "show"])
def test_a_missing_file_ends_in_2_with_one_line(synth: Synth, command: str) -> None:
    ended = synth(command, "gone.json")
    assert ended.code == 2
    assert ended.stderr == "error: cannot read gone.json: No such file or directory\n"


def test_a_profile_is_not_a_plan(synth: Synth) -> None:
    from synth.profiles import find

    ended = synth("check", find("zb-1.5b-p8-m24"))
    assert ended.code == 2
    assert "\"format\" is 'synth-profile', needed 'synth-schedule'" in ended.stderr


def test_a_folder_is_not_a_plan(synth: Synth, tmp_path: Path) -> None:
    ended = synth("check", tmp_path)
    assert ended.code == 2
    assert "Is a directory" in ended.stderr


def test_a_picture_too_narrow_is_refused(synth: Synth, plan_file: Path) -> None:
    assert synth("show", plan_file, "--width", "3").code == 2


def test_show_writes_the_simulation_as_a_trace_and_lays_one_over_the_plan(
    synth: Synth, plan_file: Path, tmp_path: Path
) -> None:
    trace, perfetto = tmp_path / "trace.json", tmp_path / "perfetto.json"
    assert synth("show", plan_file, "--trace", trace).code == 0
    ended = synth("show", plan_file, "--measured", trace, "--perfetto", perfetto, "--width", "100")
    assert ended.code == 0
    assert "rank 0  planned   F" in ended.stdout and "measured  F" in ended.stdout
    assert "measured − predicted" in ended.stdout
    assert {e["ph"] for e in json.loads(perfetto.read_text())["traceEvents"]} == set("MXCstf")


def test_iterations_that_overlap_are_drawn_but_not_taken_apart(
    synth: Synth, plan_file: Path, tmp_path: Path
) -> None:
    trace = tmp_path / "trace.json"
    assert synth("show", plan_file, "--trace", trace).code == 0
    data = json.loads(trace.read_text())
    trace.write_text(json.dumps({**data, "late": True}))
    ended = synth("show", plan_file, "--measured", trace)
    assert ended.code == 0
    assert "measured  F" in ended.stdout
    assert "measured − predicted" not in ended.stdout


def test_a_trace_of_another_plan_is_not_drawn(
    synth: Synth, plan_file: Path, tmp_path: Path
) -> None:
    trace = tmp_path / "trace.json"
    assert synth("show", plan_file, "--trace", trace).code == 0
    data = json.loads(trace.read_text())
    trace.write_text(json.dumps({**data, "schedule": "0" * 16}))
    ended = synth("show", plan_file, "--measured", trace)
    assert (ended.code, ended.stdout) == (5, "")
    assert "give the plan that was run" in ended.stderr


def test_show_writes_a_page_with_another_schedule_and_the_run(
    synth: Synth, plan_file: Path, tmp_path: Path
) -> None:
    trace, html = tmp_path / "trace.json", tmp_path / "page.html"
    assert synth("show", plan_file, "--trace", trace).code == 0
    ended = synth("show", plan_file, "--measured", trace, "--html", html, "--against", "1f1b")
    assert (ended.code, ended.stderr) == (0, f"written: {html}\n")
    titles = re.findall(r'"title": "([^"]*)"', html.read_text())
    assert titles == ["1f1b", "planned", "measured"]
    again = synth("show", plan_file, "--html", html, "--against", plan_file)
    assert again.code == 0
    assert re.findall(r'"title": "([^"]*)"', html.read_text()) == ["zb-h1", "zb-h1"]


def test_show_draws_pictures_of_a_part_above_which_another_schedule_stands(
    synth: Synth, plan_file: Path, tmp_path: Path
) -> None:
    svg, png = tmp_path / "picture.svg", tmp_path / "picture.png"
    asked = ("--picture", svg, "--picture", png, "--against", "1f1b")
    ended = synth("show", plan_file, *asked, "--ranks", "1-2", "--from", "100ms", "--to", "0.4s")
    assert (ended.code, ended.stderr) == (0, f"written: {svg}\nwritten: {png}\n")
    assert re.findall(r">(rank \d)</text>", svg.read_text()) == ["rank 1", "rank 2"] * 2
    assert png.read_bytes().startswith(b"\x89PNG")
    rows = [line for line in ended.stdout.split("\n") if line.startswith("rank ")][:2]
    assert [row.split()[1] for row in rows] == ["1", "2"]
    assert "100 ms" in ended.stdout and "\n        0 ms" not in ended.stdout


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (("--ranks", "2-9"), "write ranks from 0 to 3, such as 0-3,7"),
        (("--from", "1h"), "give --from and --to between 0 and"),
        (("--to", "soon"), "write for example 60s"),
    ],
)
def test_a_part_that_there_is_not_is_refused_before_anything_is_written(
    synth: Synth, plan_file: Path, tmp_path: Path, asked: tuple[str, ...], message: str
) -> None:
    ended = synth("show", plan_file, "--trace", tmp_path / "trace.json", *asked)
    assert (ended.code, ended.stdout) == (2, "")
    assert message in ended.stderr
    assert list(tmp_path.glob("trace.json")) == []


def test_a_page_replaces_no_file_of_someone_else(
    synth: Synth, plan_file: Path, tmp_path: Path
) -> None:
    html = tmp_path / "page.html"
    html.write_text("<html>mine</html>")
    ended = synth("show", plan_file, "--html", html)
    assert (ended.code, ended.stdout) == (2, "")
    assert "would replace a file that is not a page made by synth" in ended.stderr
    assert html.read_text() == "<html>mine</html>"
    assert synth("show", plan_file, "--html", html, "--force").code == 0


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ("zb-v", "has 8 stages, the plan has the costs of 4"),
        ("best", "is neither a plan file nor a published schedule; on its placement there are: "),
        ("gone.json", "cannot read gone.json"),
    ],
)
def test_a_schedule_that_cannot_stand_above_the_plan_is_refused(
    synth: Synth, plan_file: Path, tmp_path: Path, other: str, message: str
) -> None:
    ended = synth("show", plan_file, "--html", tmp_path / "page.html", "--against", other)
    assert ended.code == 2
    assert message in ended.stderr
    assert not (tmp_path / "page.html").exists()


def test_a_schedule_to_stand_above_needs_a_page(synth: Synth, plan_file: Path) -> None:
    ended = synth("show", plan_file, "--against", "1f1b")
    assert ended.code == 2
    assert "give --picture FILE, --html FILE or --perfetto FILE as well" in ended.stderr
