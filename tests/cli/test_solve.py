"""`synth solve`: what it answers, what it refuses, and how it ends."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from synth.families import generate
from synth.profile import Profile
from synth.profiles import find
from synth.schedule.file import Plan
from synth.schedule.placements import placement
from tests.cli.conftest import Synth

NAME = "zb-1.5b-p8-m24"
# Stages of six layers; 33 GB is enough for one micro-batch at 13.4 GB, not for all four.
SMALL = ("solve", NAME, "--ranks", "4", "--micro-batches", "4", "--time-limit", "5s")
ROOT = Path(__file__).resolve().parents[2]


def test_it_answers_with_rivals_value_bound_and_memory(synth: Synth, tmp_path: Path) -> None:
    ended = synth(*SMALL, "--mem-limit", "33GB", "-o", tmp_path / "plan.json")
    assert ended.code == 0
    for part in ("1f1b", "zb-h2", "this plan", "lower bound", "bubble rate", "of the makespan"):
        assert part in ended.stdout
    assert "memory limit 33 GB (30.73 GiB) on every rank" in ended.stdout
    assert "micro-batches; memory limit" in ended.stderr.split("\n")[0]
    plan = Plan.load(tmp_path / "plan.json")
    plan.check()
    assert max(plan.claim.peak_bytes) <= 33 * 10**9
    assert plan.caps_bytes == (33 * 10**9,) * 4


def test_the_least_limit_without_a_bubble_once_full(synth: Synth, tmp_path: Path) -> None:
    wanted = ("--mem-limit", "min", "--target", "steady", "--placement", "v", "--time-limit", "8s")
    ended = synth(*SMALL, *wanted, "-o", tmp_path / "plan.json")
    assert ended.code == 0
    assert "one more micro-batch takes" in ended.stdout
    plan = Plan.load(tmp_path / "plan.json")
    plan.check()
    assert plan.caps_bytes is not None
    assert max(plan.claim.peak_bytes) <= plan.caps_bytes[0]
    with_1f1b_bytes = 36_695_000_000
    assert plan.caps_bytes[0] < with_1f1b_bytes


def test_json_on_stdout_is_only_json(synth: Synth, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    ended = synth(*SMALL, "--format", "json", "-o", path, "--objective", "period", "-v")
    found = json.loads(ended.stdout)
    claim = Plan.load(path).claim
    assert found["objective"] == claim.objective == "period"
    assert found["value_us"] == found["period_us"] == claim.period_us
    assert {rival["name"] for rival in found["rivals"]} >= {"1f1b", "gpipe", "zb-h1", "zb-h2"}
    assert found["plan"] == str(path)


def test_the_time_of_so_many_iterations_is_a_makespan_and_periods(
    synth: Synth, tmp_path: Path
) -> None:
    path = tmp_path / "plan.json"
    asked = ("--objective", "iterations:8", "-o", path)
    found = json.loads(synth(*SMALL, *asked, "--format", "json").stdout)
    assert found["objective"] == "iterations:8"
    assert found["value_us"] == found["makespan_us"] + 7 * found["period_us"]
    shown = synth("show", path)
    assert f" s ({found['value_us']} µs), lower bound" in shown.stdout
    assert "of the makespan" in shown.stdout and "of the period" in shown.stdout
    checked = synth("check", path)
    assert checked.code == 0
    assert "µs of time of 8 iterations" in checked.stdout


def test_no_limit_and_no_file_are_said_so(synth: Synth) -> None:
    ended = synth(*SMALL)
    assert "no memory limit" in ended.stdout
    assert "not saved" in ended.stderr


def test_the_limit_auto_states_its_reserve(synth: Synth) -> None:
    ended = synth(*SMALL, "--mem-limit", "auto", "--dry-run")
    assert ended.code == 0
    assert "72 GB" in ended.stdout and "80 GB of NVIDIA A100 SXM 80G less 10%" in ended.stdout


def test_the_limit_auto_needs_a_profile_that_knows_its_device(synth: Synth, tmp_path: Path) -> None:
    profile = Profile.load(find(NAME)).replace(capacity_bytes=None)
    profile.save(tmp_path / "profile.json")
    command = ("solve", tmp_path / "profile.json", "--ranks", "4", "--micro-batches", "4")
    ended = synth(*command, "--mem-limit", "auto")
    assert ended.code == 2
    assert "does not say how much memory its device has; give a size" in ended.stderr


def test_one_limit_per_rank_is_kept_by_each(synth: Synth, tmp_path: Path) -> None:
    ended = synth(*SMALL, "--mem-limit", "40GB,35GB,30GB,25GB", "-o", tmp_path / "p.json")
    assert ended.code == 0
    plan = Plan.load(tmp_path / "p.json")
    assert plan.caps_bytes == (40 * 10**9, 35 * 10**9, 30 * 10**9, 25 * 10**9)


def test_deterministic_runs_write_the_same_file(synth: Synth, tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        arguments = ("--mem-limit", "33GB", "--deterministic", "-o", tmp_path / name)
        assert synth(*SMALL, *arguments).code == 0
    assert (tmp_path / "a.json").read_text() == (tmp_path / "b.json").read_text()


def test_a_plan_is_a_hint_that_is_never_bettered_by_something_worse(
    synth: Synth, tmp_path: Path
) -> None:
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    synth(*SMALL, "--mem-limit", "33GB", "-o", first)
    ended = synth(*SMALL, "--mem-limit", "33GB", "--hint", first, "-o", second)
    assert ended.code == 0
    assert Plan.load(second).claim.makespan_us <= Plan.load(first).claim.makespan_us


def test_a_partition_given_is_used(synth: Synth, tmp_path: Path) -> None:
    ended = synth(*SMALL, "--partition", "9,5,5,5", "-o", tmp_path / "p.json")
    assert ended.code == 0
    assert Plan.load(tmp_path / "p.json").partition == (9, 5, 5, 5)


def test_a_limit_that_nothing_can_keep_ends_in_3_with_the_way_out(
    synth: Synth, tmp_path: Path
) -> None:
    ended = synth(*SMALL, "--mem-limit", "5GB", "-o", tmp_path / "p.json")
    assert ended.code == 3
    assert ended.stdout == ""
    for part in (
        "no schedule fits in any partition",
        "static",
        "one micro-batch",
        "with the partition",
    ):
        assert part in ended.stderr
    assert not (tmp_path / "p.json").exists()


def test_the_smallest_feasible_limit_that_is_named_is_feasible(synth: Synth) -> None:
    message = synth(*SMALL, "--mem-limit", "5GB").stderr
    smallest = message.split("smallest feasible --mem-limit:")[1].split()[0]
    assert synth(*SMALL, "--mem-limit", smallest).code == 0
    below = f"{int(smallest.removesuffix('B')) - 1}B"
    assert synth(*SMALL, "--mem-limit", below).code == 3


def test_an_infeasible_limit_as_json_is_still_json(synth: Synth) -> None:
    ended = synth(*SMALL, "--mem-limit", "5GB", "--format", "json")
    assert ended.code == 3
    found = json.loads(ended.stdout)
    assert found["value_us"] is None
    assert found["stopped_by"] == "infeasible"
    assert "smallest feasible" in found["message"]


@pytest.mark.parametrize("limit", ["5GB", "33GB"])
def test_a_dry_run_says_whether_anything_fits(synth: Synth, limit: str) -> None:
    ended = synth(*SMALL, "--mem-limit", limit, "--dry-run")
    assert ended.code == (3 if limit == "5GB" else 0)
    assert "saved by F" in ended.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--mem-limit", "40"), "40GB (= 40,000,000,000 bytes) or 40GiB (= 42,949,672,960"),
        (("--mem-limit", "40G"), "has no clear unit"),
        (("--mem-limit", "1GB,2GB"), "--mem-limit gives 2 sizes for 4 ranks"),
        (("--mem-limit", "0GB"), "more than 0 bytes"),
        (("--partition", "6,6,6"), "--partition gives 3 stages for 4 ranks"),
        (("--partition", "6,6,6,x"), "'6,6,6,x' is not understood; write auto"),
        (("--partition", "6,6,6,7"), "covers 25 layers, the profile has 24"),
        (("--time-limit", "soon"), "duration 'soon' is not understood"),
        (("--partition", "6,0,12,6"), "gives stage 1 0 layers; every stage needs at least one"),
        (("--partition", "6,-6,18,6"), "gives stage 1 -6 layers"),
        (("-o", "."), "it is a folder"),
        (("-o", ".", "--dry-run"), "it is a folder"),
        (("--gap", "200%"), "share '200%' is not understood"),
        (("--hint", "gone.json"), "cannot read gone.json"),
        (("-o", "no/such/plan.json"), "folder no/such is missing"),
        (("--ranks", "25"), "25 stages asked for, the profile has 24 layers"),
    ],
)
def test_a_bad_argument_ends_in_2_with_what_was_given_and_the_way_out(
    synth: Synth, arguments: tuple[str, ...], words: str
) -> None:
    ended = synth(*SMALL, *arguments)
    assert ended.code == 2
    assert ended.stdout == ""
    assert words in ended.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("--ranks", "0"),
        ("--micro-batches", "0"),
        ("--objective", "speed"),
        ("--solver", "gurobi"),
        ("--workers", "0"),
        ("--colour",),
    ],
)
def test_a_value_that_is_no_choice_ends_in_2(synth: Synth, arguments: tuple[str, ...]) -> None:
    ended = synth(*SMALL, *arguments)
    assert (ended.code, ended.stdout) == (2, "")
    assert arguments[0] in ended.stderr


def test_an_unknown_profile_is_refused_with_the_shipped_ones(synth: Synth) -> None:
    ended = synth("solve", "gpt5", "--ranks", "4", "--micro-batches", "8")
    assert ended.code == 2
    assert "zb-28.3b-p32-m96" in ended.stderr


def test_a_plan_is_not_a_profile(synth: Synth, plan_file: Path) -> None:
    ended = synth("solve", plan_file, "--ranks", "4", "--micro-batches", "8")
    assert ended.code == 2
    assert "needed 'synth-profile'" in ended.stderr


@pytest.mark.parametrize("size", [("4", "12"), ("4", "2"), ("6", "8")])
def test_a_hint_for_another_problem_is_refused_with_both_sizes(
    synth: Synth, plan_file: Path, size: tuple[str, str]
) -> None:
    ranks, micro_batches = size
    command = ("solve", NAME, "--ranks", ranks, "--micro-batches", micro_batches)
    ended = synth(*command, "--hint", plan_file)
    assert ended.code == 2
    assert "is for 4 ranks and 8 micro-batches" in ended.stderr
    assert f"{ranks} ranks and {micro_batches} micro-batches" in ended.stderr


def test_a_file_where_the_outputs_folder_should_be_is_called_one(
    synth: Synth, tmp_path: Path
) -> None:
    (tmp_path / "own.json").write_text("kept")
    for name in ("own.json/plan.json", "own.json/deep/plan.json"):
        ended = synth(*SMALL, "-o", tmp_path / name)
        assert ended.code == 2
        assert "own.json is a file, not a folder" in ended.stderr


def test_a_folder_without_permission_is_refused_before_the_search(
    synth: Synth, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Root may write anywhere, so the permission is denied here and not on disk.
    monkeypatch.setattr(os, "access", lambda *arguments: False)
    ended = synth(*SMALL, "-o", tmp_path / "plan.json", "--dry-run")
    assert ended.code == 2
    assert "no permission to write in folder" in ended.stderr


def test_a_partition_that_is_given_is_all_that_an_infeasibility_is_about(synth: Synth) -> None:
    ended = synth(*SMALL, "--partition", "6,6,6,6", "--mem-limit", "5GB")
    assert ended.code == 3
    assert "no schedule fits for this partition (6,6,6,6): rank 0" in ended.stderr
    assert "--partition auto" in ended.stderr


def test_bubble_rates_in_the_table_are_of_each_schedules_own_work(synth: Synth) -> None:
    # The same schedule has the same rate whatever plan stands below it, and in `synth compare`.
    asked = (NAME, "--ranks", "4", "--micro-batches", "4", "--mem-limit")
    compared = synth("compare", *asked, "16GB", "--no-solve", "--format", "json")
    schedules = {row["name"]: row for row in json.loads(compared.stdout)["schedules"]}
    for limit in ("16GB", "60GB"):
        solved = synth("solve", *asked, limit, "--time-limit", "0", "--format", "json")
        for rival in json.loads(solved.stdout)["rivals"]:
            if rival["name"] in ("1f1b", "1f1b:recompute", "zb-h1"):
                rate = schedules[rival["name"]]["bubble_rate_of_makespan"]
                assert rival["bubble_rate"] == pytest.approx(rate)


def test_a_published_schedule_that_is_faster_since_it_recomputes_is_pointed_out(
    synth: Synth,
) -> None:
    # 16 GB hold one micro-batch at a time, or several of which only the inputs are kept.
    faster = r"(1f1b|gpipe):recompute fits and is faster, .* try --recompute auto, or"
    tight, ample = (synth(*SMALL, "--mem-limit", limit) for limit in ("16GB", "60GB"))
    assert re.search(faster, tight.stdout)
    assert "fits and is faster" not in ample.stdout


def test_without_a_limit_json_does_not_say_that_rivals_fit(synth: Synth) -> None:
    found = json.loads(synth(*SMALL, "--format", "json").stdout)
    assert {rival["fits"] for rival in found["rivals"]} == {None}


def test_without_time_there_is_still_a_plan_where_one_fits(synth: Synth) -> None:
    command = ("solve", NAME, "--ranks", "4", "--micro-batches", "4", "--mem-limit", "14.4GB")
    ended = synth(*command, "--time-limit", "0")
    assert ended.code == 0
    assert "found by serial" in ended.stdout


def test_too_many_micro_batches_are_refused_with_the_most_there_can_be(synth: Synth) -> None:
    ended = synth("solve", NAME, "--ranks", "4", "--micro-batches", "100000000")
    assert ended.code == 2
    assert "give at most 166,666 micro-batches" in ended.stderr


def test_a_hint_from_another_profile_is_taken_and_said_so(synth: Synth, plan_file: Path) -> None:
    command = ("--ranks", "4", "--micro-batches", "8", "--time-limit", "1s", "--hint", plan_file)
    own = synth("solve", NAME, *command)
    other = synth("solve", "zb-14.6b-p16-m48", *command)
    assert (own.code, other.code) == (0, 0)
    assert "made from another profile" in other.stderr
    assert "made from another profile" not in own.stderr


def test_a_published_schedule_is_a_hint_by_its_name(synth: Synth) -> None:
    # Without time for anything else: a fitting hint is never bettered by something worse.
    command = ("solve", NAME, "--ranks", "4", "--micro-batches", "12", "--placement", "v")
    ended = synth(*command, "--time-limit", "0", "--hint", "zb-v", "--format", "json")
    assert ended.code == 0, ended.stderr
    found = json.loads(ended.stdout)
    zb_v = next(rival for rival in found["rivals"] if rival["name"] == "zb-v")
    assert found["value_us"] <= zb_v["makespan_us"]


@pytest.mark.parametrize(
    ("hint", "words"),
    [
        ("zb-h9", "zb-h9 is neither a schedule file nor a published schedule; with these numbers"),
        ("zb-v", "zb-v places its stages on ranks 0,1,2,3,3,2,1,0, asked for is 0,1,2,3"),
        ("mixpipe:inject=0", "--hint mixpipe:inject=0: family"),
        ("bpipe", "--hint bpipe moves what forwards save to the host or another rank"),
    ],
)
def test_a_hint_that_cannot_be_names_those_that_can(synth: Synth, hint: str, words: str) -> None:
    ended = synth(*SMALL, "--hint", hint)
    assert (ended.code, ended.stdout) == (2, "")
    assert words in ended.stderr
    named = ended.stderr.partition("there are on this placement: ")[2].strip().split(", ")
    kept = {"1f1b", "gpipe", "zb-1p", "zb-2p", "zb-h1", "zb-h2"}
    assert kept | {"1f1b:recompute", "gpipe:recompute"} <= set(named)
    assert "bpipe" not in named


@pytest.mark.parametrize("name", ["1f1b:recompute", "gpipe:recompute", "zb-limit"])
def test_every_schedule_that_is_named_as_a_hint_is_taken(synth: Synth, name: str) -> None:
    command = ("solve", NAME, "--ranks", "4", "--micro-batches", "4", "--mem-limit", "33GB")
    named = synth(*command, "--hint", "none-such").stderr
    ended = synth(*command, "--time-limit", "0", "--hint", name)
    assert name in named.partition("there are on this placement: ")[2].strip().split(", ")
    assert ended.code == 0
    assert ("which stages recompute is for --recompute to say" in ended.stderr) == (
        "recompute" in name
    )


# Placements other than one stage per rank.


@pytest.mark.parametrize(
    ("name", "num_stages", "family"),
    [("v", 8, "zb-v"), ("looped:2", 8, "interleaved"), ("bidirectional", 4, "chimera")],
)
def test_a_placement_is_solved_written_shown_and_checked(
    synth: Synth, tmp_path: Path, name: str, num_stages: int, family: str
) -> None:
    path = tmp_path / "plan.json"
    ended = synth(*SMALL, "--placement", name, "--mem-limit", "40GB", "-o", path)
    assert ended.code == 0, ended.stderr
    assert family in ended.stdout
    plan = Plan.load(path)
    assert (len(plan.partition), plan.arguments["placement"]) == (num_stages, name)
    assert plan.schedule().placement == placement(name, 4)
    assert max(plan.claim.peak_bytes) <= 40 * 10**9
    assert synth("check", path).code == 0
    shown = synth("show", path, "--width", "300").stdout
    assert "lower case: a rank's second stage" in shown
    held = {"v": "0, 7", "looped:2": "0, 4", "bidirectional": "0, 3@1"}[name]
    assert re.search(rf"^ +0 +{held} ", shown, re.MULTILINE)


def test_a_plan_with_replicas_comes_back_from_its_file_as_it_was(tmp_path: Path) -> None:
    profile = Profile.load(find(NAME))
    schedule = generate("chimera", 4, 8)
    plan = Plan.of(profile, [6] * 4, schedule)
    plan.save(tmp_path / "plan.json")
    loaded = Plan.load(tmp_path / "plan.json")
    loaded.check()
    assert loaded == plan
    assert loaded.schedule() == schedule


def test_a_hint_on_another_placement_is_refused_with_both(synth: Synth, tmp_path: Path) -> None:
    synth(*SMALL, "-o", tmp_path / "plan.json")
    ended = synth(*SMALL, "--placement", "v", "--hint", tmp_path / "plan.json")
    assert ended.code == 2
    assert "on ranks 0,1,2,3, asked for is 0,1,2,3,3,2,1,0" in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--placement", "vv"), "placement 'vv' is unknown; known: linear"),
        (("--placement", "v", "--partition", "6,6,6,6"), "that hold 8 stages in this placement"),
        (("--placement", "wave:9"), "72 stages asked for, the profile has 24 layers"),
        (("--placement", "bidirectional", "--micro-batches", "1"), "for 2 replicas"),
    ],
)
def test_a_bad_placement_ends_in_2(synth: Synth, arguments: tuple[str, ...], words: str) -> None:
    ended = synth(*SMALL, *arguments)
    assert (ended.code, ended.stdout) == (2, "")
    assert words in ended.stderr


def test_a_dry_run_names_the_ranks_of_each_stage(synth: Synth) -> None:
    shown = synth(*SMALL, "--placement", "v", "--dry-run", "--mem-limit", "40GB").stdout
    assert re.search(r"^ +7 +0 +3 ", shown, re.MULTILINE)
    assert "feasible" in shown


# The least memory for a target.


def test_the_least_memory_for_a_target_is_found_and_enclosed(synth: Synth, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    least = ("--mem-limit", "min", "--target", "105%", "--time-limit", "20s", "-o", path)
    ended = synth(*SMALL, *least)
    assert ended.code == 0, ended.stderr
    for part in ("least memory limit", "proven not below", "this plan"):
        assert part in ended.stdout
    plan = Plan.load(path)
    plan.check()
    assert plan.caps_bytes == (max(plan.claim.peak_bytes),) * 4
    target_us = int(re.findall(r"target: makespan .* \((\d+) µs\)", ended.stdout)[0])
    not_below = int(re.findall(r"not below .* = (\d+)B", ended.stdout)[0])
    assert plan.claim.makespan_us <= target_us
    # One byte below what is proven, no schedule meets the target: an independent search says so.
    below = synth(*SMALL, "--mem-limit", f"{not_below - 1}B", "--gap", "0%", "--format", "json")
    found = json.loads(below.stdout)
    assert found["value_us"] is None or found["value_us"] > target_us


def test_the_least_memory_as_json_is_only_json(synth: Synth) -> None:
    ended = synth(*SMALL, "--mem-limit", "min", "--target", "2s", "--format", "json")
    found = json.loads(ended.stdout)
    assert found["target_us"] == 2_000_000
    assert found["not_below_bytes"] <= found["cap_bytes"] == max(found["peak_bytes"])
    assert found["value_us"] <= 2_000_000


def test_a_target_that_nothing_meets_ends_in_3(synth: Synth, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    ended = synth(*SMALL, "--mem-limit", "min", "--target", "100ms", "-o", path)
    assert (ended.code, ended.stdout) == (3, "")
    assert "however much memory there is: the lower bound is" in ended.stderr
    assert not path.exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--mem-limit", "min"), "--mem-limit min is given without --target"),
        (("--target", "105%"), "--target is given without --mem-limit min"),
        (("--mem-limit", "min", "--target", "90%"), "below the lower bound"),
        (("--mem-limit", "min", "--target", "850"), "has no unit; write for example 850ms"),
        (("--mem-limit", "min", "--target", "0s"), "is no time"),
        (("--mem-limit", "min", "--target", "soon"), "'soon' is not understood"),
        (("--mem-limit", "min", "--target", "x%"), "'x%' is not understood"),
        (("--mem-limit", "min", "--target", "2s", "--deterministic"), "cannot be deterministic"),
        (
            ("--mem-limit", "min", "--target", "2s", "--deterministic", "--dry-run"),
            "cannot be deterministic",
        ),
    ],
)
def test_a_bad_target_ends_in_2(synth: Synth, arguments: tuple[str, ...], words: str) -> None:
    ended = synth(*SMALL, *arguments)
    assert (ended.code, ended.stdout) == (2, "")
    assert words in ended.stderr


# Ctrl-C, in a process of its own: a problem that takes minutes to prove.


def start_long_solve(path: Path, *limit: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "synth", "solve", NAME, "--ranks", "8"]
    command += ["--micro-batches", "32", *(limit or ("--mem-limit", "20GB"))]
    command += ["--gap", "0%", "-o", str(path)]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    until = time.monotonic() + 300
    while not path.exists() and time.monotonic() < until:
        time.sleep(0.05)
    assert path.exists()
    return process


def test_the_first_ctrl_c_keeps_the_best_so_far(tmp_path: Path) -> None:
    process = start_long_solve(tmp_path / "plan.json")
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=300)
    assert process.returncode == 0, stderr
    assert "stopping and keeping the best so far" in stderr
    assert "stopped by interrupt" in stdout
    plan = Plan.load(tmp_path / "plan.json")
    plan.check()
    assert plan.claim.stopped_by == "interrupt"


def test_the_second_ctrl_c_gives_up_with_130_and_a_whole_file(tmp_path: Path) -> None:
    process = start_long_solve(tmp_path / "plan.json")
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    while "stopping" not in process.stderr.readline():
        pass
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=300)
    assert process.returncode in (130, 0)  # 0: the search had already stopped
    Plan.load(tmp_path / "plan.json").check()


def test_ctrl_c_keeps_the_least_memory_so_far(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    process = start_long_solve(path, "--mem-limit", "min", "--target", "105%")
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=300)
    assert process.returncode == 0, stderr
    assert "stopping and keeping the best so far" in stderr
    assert "stopped by interrupt" in stdout
    plan = Plan.load(path)
    plan.check()
    assert plan.caps_bytes == (max(plan.claim.peak_bytes),) * 8


def test_recomputing_the_first_stages_makes_a_tight_plan_shorter(
    synth: Synth, tmp_path: Path
) -> None:
    values = {}
    for choice in ("none", "auto", "0"):
        path = tmp_path / f"{choice}.json"
        ended = synth(
            *("solve", "zb-1.5b-p8-m24", "--ranks", "4", "--micro-batches", "8", "--format"),
            *("json", "--mem-limit", "24GB", "--time-limit", "1s", "--recompute", choice),
            *("--deterministic", "--workers", "1", "-o", path),
        )
        assert ended.code == 0, ended.stderr
        found = json.loads(ended.stdout)
        values[choice] = found["value_us"]
        assert found["lower_bound_us"] <= found["value_us"]
        assert bool(found["recomputed"]) == (choice != "none")
        assert synth("check", path).code == 0
    assert values["auto"] <= values["0"] < values["none"]
    shown = synth("show", tmp_path / "auto.json")
    assert shown.code == 0 and "R" in shown.stdout


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("--recompute", "0,9"), "--recompute '0,9' is not understood; write none, all, auto, or"),
        (("--recompute", "some"), "stages from 0 to 3, such as 0,1"),
        (
            ("--recompute", "auto", "--mem-limit", "min", "--target", "steady"),
            "--recompute auto and --target steady do not go together",
        ),
    ],
)
def test_recompute_that_cannot_be_gets_one_clear_sentence(
    synth: Synth, given: tuple[str, ...], message: str
) -> None:
    ended = synth("solve", "zb-1.5b-p8-m24", "--ranks", "4", "--micro-batches", "8", *given)
    assert ended.code == 2
    assert message in ended.stderr
