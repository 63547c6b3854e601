"""`synth solve --hint` and `--placement`: the schedule to start from, and the mapping of stages."""

import json
import re
from pathlib import Path

import pytest

from synth.costs.partition_costs import partition_costs
from synth.families import generate
from synth.options.profiles import load_profile
from synth.profile import Profile
from synth.profiles import find
from synth.schedule.files.plan_file import Plan
from synth.schedule.placements import placement
from synth.schedule.verify import verify
from tests.cli.conftest import NAME, SMALL_SOLVE, Synth


def test_a_plan_is_a_hint_that_is_never_bettered_by_something_worse(
    synth: Synth, tmp_path: Path
) -> None:
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    synth(*SMALL_SOLVE, "--mem-limit", "33GB", "-o", first)
    ended = synth(*SMALL_SOLVE, "--mem-limit", "33GB", "--hint", first, "-o", second)
    assert ended.code == 0
    assert Plan.load(second).claim.makespan_us <= Plan.load(first).claim.makespan_us
    said = Plan.load(second).arguments
    assert (said["hint"], said["seed"], said["workers"]) == (str(first), "0", "all cores")


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
    ended = synth(*command, "--time-limit", "1ms", "--hint", "zb-v", "--format", "json")
    assert ended.code == 0, ended.stderr
    found = json.loads(ended.stdout)
    costs = partition_costs(load_profile(NAME), found["partition"])
    _, timeline = verify(generate("zb-v", 4, 12, costs=costs), costs)
    assert found["value_us"] <= timeline.makespan_us


@pytest.mark.parametrize(
    ("hint", "words"),
    [
        ("zb-h9", "zb-h9 is neither a schedule file nor a published schedule; with these numbers"),
        ("zb-v", "zb-v places its stages on ranks 0,1,2,3,3,2,1,0, asked for is 0,1,2,3"),
        ("mixpipe:inject=0", "--hint mixpipe:inject=0: family"),
        ("2bw", "--hint 2bw updates weights between its ops, and the search"),
        ("bpipe", "--hint bpipe moves what forwards save to the host or another rank"),
    ],
)
def test_a_hint_that_cannot_be_names_those_that_can(synth: Synth, hint: str, words: str) -> None:
    ended = synth(*SMALL_SOLVE, "--hint", hint)
    assert (ended.code, ended.stdout) == (2, "")
    assert words in ended.stderr
    named = ended.stderr.partition("there are on this placement: ")[2].strip().split(", ")
    kept = {"1f1b", "gpipe", "zb-1p", "zb-2p", "zb-h1", "zb-h2"}
    assert kept | {"1f1b:recompute", "gpipe:recompute"} <= set(named)
    assert "bpipe" not in named


def test_a_hint_with_weight_passing_is_refused(synth: Synth) -> None:
    asked = ("solve", NAME, "--ranks", "4", "--micro-batches", "4", "--placement", "all-stages")
    ended = synth(*asked, "--hint", "zero3:1")
    assert (ended.code, ended.stdout) == (2, "")
    assert "--hint zero3:1 moves weights from rank to rank, and the search orders" in ended.stderr


@pytest.mark.parametrize("name", ["1f1b:recompute", "gpipe:recompute", "zb-limit"])
def test_every_schedule_that_is_named_as_a_hint_is_taken(synth: Synth, name: str) -> None:
    command = ("solve", NAME, "--ranks", "4", "--micro-batches", "4", "--mem-limit", "33GB")
    named = synth(*command, "--hint", "none-such").stderr
    ended = synth(*command, "--time-limit", "1ms", "--hint", name)
    assert name in named.partition("there are on this placement: ")[2].strip().split(", ")
    assert ended.code == 0
    assert ("which stages recompute is for --recompute to say" in ended.stderr) == (
        "recompute" in name
    )


@pytest.mark.parametrize(
    ("name", "num_stages", "family"),
    [("v", 8, "zb-v"), ("looped:2", 8, "interleaved"), ("bidirectional", 4, "chimera")],
)
def test_a_placement_is_solved_written_shown_and_checked(
    synth: Synth, tmp_path: Path, name: str, num_stages: int, family: str
) -> None:
    path = tmp_path / "plan.json"
    asked = ("--placement", name, "--mem-limit", "40GB", "--time-limit", "1s")
    ended = synth(*SMALL_SOLVE, *asked, "-o", path)
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
    synth(*SMALL_SOLVE, "-o", tmp_path / "plan.json")
    ended = synth(*SMALL_SOLVE, "--placement", "v", "--hint", tmp_path / "plan.json")
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
    ended = synth(*SMALL_SOLVE, *arguments)
    assert (ended.code, ended.stdout) == (2, "")
    assert words in ended.stderr


def test_a_dry_run_names_the_ranks_of_each_stage(synth: Synth) -> None:
    shown = synth(*SMALL_SOLVE, "--placement", "v", "--dry-run", "--mem-limit", "40GB").stdout
    assert re.search(r"^ +7 +0 +3 ", shown, re.MULTILINE)
    assert "feasible" in shown
