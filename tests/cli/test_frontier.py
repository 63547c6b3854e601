"""`synth frontier`: the table, the files, going on, Ctrl-C, and what it refuses."""

import json
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from synth.cli.work.frontier import as_text
from synth.plan.memory_curve.curve_file import MemoryCurve, cap_of
from synth.schedule.files.plan_file import Plan
from tests.cli.conftest import NAME, Synth, of_an_earlier_synth

pytestmark = pytest.mark.usefixtures("kept_workers")

ROOT = Path(__file__).resolve().parents[2]
SIZE = ("--ranks", "4", "--micro-batches", "4")
SMALL = ("frontier", NAME, *SIZE, "--time-limit", "2s", "--jobs", "1", "--points")


def test_it_answers_with_a_table_a_plot_a_file_and_a_picture(synth: Synth, tmp_path: Path) -> None:
    plans, html = tmp_path / "plans", tmp_path / "page.html"
    files = ("--save", plans, "--html", html, "--picture", tmp_path / "curve.svg")
    ended = synth(*SMALL, "4", "-o", tmp_path / "curve.json", *files)
    assert ended.code == 0, ended.stderr
    for part in ("memory limit", "lower bound", "found by", "infeasible below 14.39 GB", "1f1b"):
        assert part in ended.stdout
    of_what, for_what = ended.stdout.split("\n")[:2]
    assert of_what == f"{NAME} on 4 ranks (linear), 4 micro-batches, in one partition"
    assert for_what.endswith("for this placement, with partition 6,6,6,6")
    curve = MemoryCurve.load(tmp_path / "curve.json")
    curve.check()
    assert len(curve.points) == 4
    for point in curve.points:
        assert Plan.load(plans / f"{cap_of(point)}B.json") == point
    for point in curve.points:
        assert f'data-name=\\"{cap_of(point)}\\"' in html.read_text()
    ET.parse(tmp_path / "curve.svg")
    assert "(linear), 4 micro-batches, in one partition" in (tmp_path / "curve.svg").read_text()
    assert "4/4  limit" in ended.stderr
    assert "drawn in" in ended.stderr
    notes = plans / f"{cap_of(curve.points[0])}B.json"
    notes.write_text("mine")
    again = (*SMALL, "4", "-o", tmp_path / "curve.json", "--save", plans)
    ended = synth(*again)
    assert ended.code == 2
    assert f"--save {notes} would replace a file that is not a synth-schedule" in ended.stderr
    assert "lower bound" in ended.stdout and notes.read_text() == "mine"
    assert synth(*again, "--force").code == 0
    assert Plan.load(notes) == curve.points[0]


def test_the_same_command_again_goes_on_and_another_problem_is_refused(
    synth: Synth, tmp_path: Path
) -> None:
    path = tmp_path / "curve.json"
    first = json.loads(synth(*SMALL, "2", "-o", path, "--format", "json").stdout)
    ended = synth(*SMALL, "3", "-o", path, "--format", "json")
    more = json.loads(ended.stdout)
    assert "2 points are there already" in ended.stderr
    assert len(first["points"]) == 2 and len(more["points"]) == 3
    caps = [point["cap_bytes"] for point in more["points"]]
    assert {point["cap_bytes"] for point in first["points"]} < set(caps)

    before = path.read_text()
    for other, words in (
        (("--objective", "period"), "objective: makespan there, period here"),
        (("--placement", "v"), "placement: ((0, 1, 2, 3),) there"),
        (("--recompute", "all"), "recompute: none there, 0,1,2,3 here"),
        (("--micro-batches", "8"), "num micro batches: 4 there, 8 here"),
    ):
        refused = synth(*SMALL, "3", "-o", path, *other)
        assert refused.code == 2
        assert "holds the curve of another problem" in refused.stderr and words in refused.stderr
        assert "give another -o" in refused.stderr
    assert path.read_text() == before


def test_a_curve_of_an_earlier_synth_whose_bounds_may_not_hold_is_refused(
    synth: Synth, tmp_path: Path
) -> None:
    path = tmp_path / "curve.json"
    assert synth(*SMALL, "2", "-o", path).code == 0
    curve = MemoryCurve.load(path)
    curve.replace(points=tuple(map(of_an_earlier_synth, curve.points))).save(path)
    refused = synth(*SMALL, "3", "-o", path)
    assert refused.code == 2
    assert "memory of backwards: as an earlier synth counted it there, less here" in refused.stderr


def test_with_recomputation_the_table_says_which_stages(synth: Synth, tmp_path: Path) -> None:
    given = ("-o", tmp_path / "curve.json", "--recompute", "auto", "--placement", "v")
    ended = synth(*SMALL, "2", *given)
    assert ended.code == 0, ended.stderr
    assert "recomputed" in ended.stdout
    shown = json.loads(synth(*SMALL, "2", *given, "--format", "json").stdout)
    # At the least limit nothing fits that keeps everything.
    stages = shown["points"][0]["recomputed"]
    assert stages and f"  {','.join(map(str, stages))}\n" in ended.stdout


def test_a_file_of_another_kind_is_not_written_over(
    synth: Synth, plan_file: Path, tmp_path: Path
) -> None:
    path = tmp_path / "plan.json"
    path.write_text(plan_file.read_text())
    ended = synth(*SMALL, "3", "-o", path)
    assert ended.code == 2
    assert "needed 'synth-frontier'" in ended.stderr
    assert path.read_text() == plan_file.read_text()


def test_a_point_that_is_not_what_it_claims_ends_in_5(synth: Synth, tmp_path: Path) -> None:
    path = tmp_path / "curve.json"
    synth(*SMALL, "2", "-o", path)
    data = json.loads(path.read_text())
    data["points"][0]["claim"]["period_us"] -= 1
    path.write_text(json.dumps(data))
    ended = synth(*SMALL, "3", "-o", path)
    assert ended.code == 5
    assert "claims period_us" in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("-o", "."), "it is a folder"),
        (("-o", "no/such/curve.json"), "folder no/such is missing"),
        (("-o", "c.json", "--svg", "no/such/c.svg"), "folder no/such is missing"),
        (("-o", "c.svg", "--svg", "c.svg"), "c.svg is written by the same command"),
        (("-o", "c.json", "--points", "1"), "--points"),
        (("-o", "c.json", "--workers", "1000000"), "--workers"),
        (("-o", "c.json", "--jobs", "1000000"), "--jobs"),
        (("-o", "c.json", "--placement", "auto"), "one curve is of one placement; give linear"),
        (("-o", "c.json", "--time-limit", "0"), "--time-limit 0 leaves no time to search"),
        (("-o", "c.json", "--placement", "w"), "placement 'w' is unknown"),
        (("-o", "c.json", "--partition", "6,6"), "--partition gives 2 stages for 4 ranks"),
    ],
)
def test_a_bad_argument_ends_in_2(synth: Synth, arguments: tuple[str, ...], words: str) -> None:
    ended = synth(*SMALL, "3", *arguments)
    assert (ended.code, ended.stdout) == (2, "")
    assert words in ended.stderr


def test_a_second_one_on_the_same_file_is_refused_until_the_first_one_has_ended(
    synth: Synth, tmp_path: Path
) -> None:
    path = tmp_path / "curve.json"
    command = (sys.executable, "-m", "synth", *SMALL, "4", "-o", str(path))
    none = subprocess.DEVNULL
    first = subprocess.Popen(command, cwd=ROOT, start_new_session=True, stdout=none, stderr=none)
    try:
        lock = tmp_path / ".curve.json.lock"
        until = time.monotonic() + 300
        while not (lock.exists() and lock.read_text()) and time.monotonic() < until:
            time.sleep(0.01)
        os.killpg(first.pid, signal.SIGSTOP)  # in the middle of it
        there = path.exists()
        refused = synth(*SMALL, "2", "-o", path)
    finally:
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
    assert (refused.code, refused.stdout, path.exists()) == (2, "", there)
    assert f"{path} is being written by process {first.pid} on " in refused.stderr
    assert "let that end and run this again, or give another -o" in refused.stderr

    assert lock.exists()  # left behind, and no hindrance
    ended = synth(*SMALL, "2", "-o", path)
    assert ended.code == 0, ended.stderr
    assert not lock.exists()


def test_ctrl_c_keeps_the_points_so_far(tmp_path: Path) -> None:
    path = tmp_path / "curve.json"
    command = [sys.executable, "-m", "synth", "frontier", NAME, "--ranks", "8"]
    command += ["--micro-batches", "32", "--gap", "0%", "--jobs", "2", "-o", str(path)]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    until = time.monotonic() + 300
    while not path.exists() and time.monotonic() < until:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the workers as well
    stdout, stderr = process.communicate(timeout=300)
    assert process.returncode == 0, stderr
    assert "stopping and keeping the best so far" in stderr
    assert "the same command again continues from here" in stderr
    assert "Traceback" not in stderr
    assert "limit" in stdout
    curve = MemoryCurve.load(path)
    curve.check()
    assert [cap_of(plan) for plan in curve.points]


def test_each_point_may_have_the_partition_that_serves_best(synth: Synth, tmp_path: Path) -> None:
    path = tmp_path / "curve.json"
    asked = (*SMALL, "4", "-o", path, "--partition", "search")
    ended = synth(*asked)
    assert ended.code == 0, ended.stderr
    of_what, for_what = ended.stdout.split("\n")[:2]
    assert of_what.endswith("4 micro-batches, in any partition")
    assert "with the partition of each row, and each bound for all partitions" in for_what
    assert "layers per stage" in ended.stdout
    assert "infeasible below 14.39 GB" in ended.stdout and "in any partition" in ended.stdout
    curve = MemoryCurve.load(path)
    curve.check()
    points = json.loads(synth(*asked, "--format", "json").stdout)["points"]
    assert [tuple(point["partition"]) for point in points] == [p.partition for p in curve.points]
    assert all(sum(point["partition"]) == 24 for point in points)
    refused = synth(*SMALL, "4", "-o", path)
    assert refused.code == 2
    assert "partition: searched there, (6, 6, 6, 6) here" in refused.stderr


@pytest.mark.parametrize("more", [("--placement", "v"), ("--recompute", "auto")])
def test_partitions_are_not_sought_without_bounds_of_all(
    synth: Synth, tmp_path: Path, more: tuple[str, ...]
) -> None:
    path = tmp_path / "curve.json"
    ended = synth(*SMALL, "3", "-o", path, "--partition", "search", *more)
    assert ended.code == 2
    assert (
        "exist only for one stage per rank (--placement linear) and without --recompute"
        in ended.stderr
    )
    assert not path.exists()


def test_the_table_has_one_row_of_equal_peak_and_time_and_no_picture_is_drawn_unasked(
    synth: Synth, tmp_path: Path
) -> None:
    path = tmp_path / "curve.json"
    assert synth(*SMALL, "2", "-o", path).code == 0
    curve = MemoryCurve.load(path)
    last = curve.points[-1]
    looser = last.replace(caps_bytes=tuple(cap + 1 for cap in last.caps_bytes or ()))
    title = "some curve"
    once = as_text(curve, title, 100).partition("infeasible")[0]
    again = curve.replace(points=(*curve.points, looser))
    assert as_text(again, title, 100).partition("infeasible")[0] == once
    assert not list(tmp_path.glob("*.svg"))
