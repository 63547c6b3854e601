"""`synth solve`: memory limits that cannot be kept, the least that can, and recomputation."""

import json
import re
from pathlib import Path

import pytest

from synth.profile import Profile
from synth.profiles import find
from synth.schedule.files.plan_file import Plan
from tests.cli.conftest import NAME, SMALL_SOLVE, Synth


def test_the_limit_auto_states_its_reserve(synth: Synth) -> None:
    ended = synth(*SMALL_SOLVE, "--mem-limit", "auto", "--dry-run")
    assert ended.code == 0
    assert "72 GB" in ended.stdout and "80 GB of NVIDIA A100 SXM 80G less 10%" in ended.stdout


def test_the_limit_auto_is_the_default_and_is_said_with_the_way_out(
    synth: Synth, tmp_path: Path
) -> None:
    ended = synth(*SMALL_SOLVE, "-o", tmp_path / "p.json")
    assert ended.code == 0
    assert "72 GB" in ended.stderr and "80 GB of NVIDIA A100 SXM 80G less 10%" in ended.stderr
    assert "(--mem-limit none: no limit)" in ended.stderr
    plan = Plan.load(tmp_path / "p.json")
    assert plan.caps_bytes == (72 * 10**9,) * 4
    assert plan.arguments["mem_limit"] == "auto"
    assert synth("check", tmp_path / "p.json").code == 0


def test_the_limit_none_is_no_limit_and_so_is_a_device_that_nobody_knows(
    synth: Synth, tmp_path: Path
) -> None:
    Profile.load(find(NAME)).replace(capacity_bytes=None).save(tmp_path / "profile.json")
    unknown = ("solve", tmp_path / "profile.json", *SMALL_SOLVE[2:])
    for command in ((*SMALL_SOLVE, "--mem-limit", "none"), unknown):
        ended = synth(*command, "-o", tmp_path / "p.json")
        assert "no memory limit" in ended.stderr
        plan = Plan.load(tmp_path / "p.json")
        assert plan.caps_bytes is None and plan.arguments["mem_limit"] == "none"


def test_a_reserve_alone_is_of_the_default_limit(synth: Synth) -> None:
    ended = synth(*SMALL_SOLVE, "--mem-reserve", "2GB", "--dry-run")
    assert "78 GB" in ended.stdout and "80 GB of NVIDIA A100 SXM 80G less 2 GB" in ended.stdout


def test_the_limit_auto_needs_a_profile_that_knows_its_device(synth: Synth, tmp_path: Path) -> None:
    profile = Profile.load(find(NAME)).replace(capacity_bytes=None)
    profile.save(tmp_path / "profile.json")
    command = ("solve", tmp_path / "profile.json", "--ranks", "4", "--micro-batches", "4")
    ended = synth(*command, "--mem-limit", "auto")
    assert ended.code == 2
    assert "does not say how much memory its device has; give a size" in ended.stderr


def test_a_reserve_is_taken_off_the_limit_and_recorded(synth: Synth, tmp_path: Path) -> None:
    file = tmp_path / "p.json"
    ended = synth(*SMALL_SOLVE, "--mem-limit", "40GB", "--mem-reserve", "1.5GB", "-o", file)
    assert ended.code == 0
    assert "38.5 GB" in ended.stderr and "after a reserve of 1.5 GB was subtracted" in ended.stderr
    plan = Plan.load(file)
    assert plan.caps_bytes == (38_500_000_000,) * 4
    assert max(plan.claim.peak_bytes) <= 38_500_000_000
    assert (plan.arguments["mem_limit"], plan.arguments["mem_reserve"]) == ("40GB", "1.5GB")
    assert synth("check", file).code == 0


def test_with_auto_a_reserve_stands_in_for_the_tenth(synth: Synth) -> None:
    ended = synth(*SMALL_SOLVE, "--mem-limit", "auto", "--mem-reserve", "2GB", "--dry-run")
    assert "78 GB" in ended.stdout and "80 GB of NVIDIA A100 SXM 80G less 2 GB" in ended.stdout


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--mem-limit", "none"), "is subtracted from a --mem-limit that is a size or auto"),
        (("--mem-limit", "min", "--target", "105%"), "is subtracted from a --mem-limit"),
        (("--mem-limit", "2GB"), "leaves nothing of a limit of 2 GB"),
        (("--mem-limit", "40GB,2GB,40GB,40GB"), "leaves nothing of a limit of 2 GB"),
    ],
)
def test_a_reserve_without_a_limit_beyond_it_is_refused(
    synth: Synth, options: tuple[str, ...], said: str
) -> None:
    ended = synth(*SMALL_SOLVE, *options, "--mem-reserve", "2GB")
    assert ended.code == 2
    assert said in ended.stderr


def test_one_limit_per_rank_is_kept_by_each(synth: Synth, tmp_path: Path) -> None:
    ended = synth(*SMALL_SOLVE, "--mem-limit", "40GB,35GB,30GB,25GB", "-o", tmp_path / "p.json")
    assert ended.code == 0
    plan = Plan.load(tmp_path / "p.json")
    assert plan.caps_bytes == (40 * 10**9, 35 * 10**9, 30 * 10**9, 25 * 10**9)


def test_a_limit_that_nothing_can_keep_ends_in_3_with_the_way_out(
    synth: Synth, tmp_path: Path
) -> None:
    ended = synth(*SMALL_SOLVE, "--mem-limit", "5GB", "-o", tmp_path / "p.json")
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
    message = synth(*SMALL_SOLVE, "--mem-limit", "5GB").stderr
    smallest = message.split("smallest feasible --mem-limit:")[1].split()[0]
    assert synth(*SMALL_SOLVE, "--mem-limit", smallest).code == 0
    below = f"{int(smallest.removesuffix('B')) - 1}B"
    assert synth(*SMALL_SOLVE, "--mem-limit", below).code == 3


def test_an_infeasible_limit_as_json_is_still_json(synth: Synth) -> None:
    ended = synth(*SMALL_SOLVE, "--mem-limit", "5GB", "--format", "json")
    assert ended.code == 3
    found = json.loads(ended.stdout)
    assert found["value_us"] is None
    assert found["stopped_by"] == "infeasible"
    assert "smallest feasible" in found["message"]


@pytest.mark.parametrize("limit", ["5GB", "33GB"])
def test_a_dry_run_says_whether_anything_fits(synth: Synth, limit: str) -> None:
    ended = synth(*SMALL_SOLVE, "--mem-limit", limit, "--dry-run")
    assert ended.code == (3 if limit == "5GB" else 0)
    assert "retained" in ended.stdout


def test_a_partition_that_is_given_is_all_that_an_infeasibility_is_about(synth: Synth) -> None:
    ended = synth(*SMALL_SOLVE, "--partition", "6,6,6,6", "--mem-limit", "5GB")
    assert ended.code == 3
    assert "no schedule fits for this partition (6,6,6,6): rank 0" in ended.stderr
    assert "--partition auto" in ended.stderr


def test_the_least_memory_for_a_target_is_found_and_enclosed(synth: Synth, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    least = ("--mem-limit", "min", "--target", "105%", "--time-limit", "20s", "-o", path)
    ended = synth(*SMALL_SOLVE, *least)
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
    below = synth(
        *SMALL_SOLVE, "--mem-limit", f"{not_below - 1}B", "--gap", "0%", "--format", "json"
    )
    found = json.loads(below.stdout)
    assert found["value_us"] is None or found["value_us"] > target_us


def test_the_least_memory_as_json_is_only_json(synth: Synth) -> None:
    ended = synth(*SMALL_SOLVE, "--mem-limit", "min", "--target", "2s", "--format", "json")
    found = json.loads(ended.stdout)
    assert found["target_us"] == 2_000_000
    assert found["not_below_bytes"] <= found["cap_bytes"] == max(found["peak_bytes"])
    assert found["value_us"] <= 2_000_000


def test_a_target_that_nothing_meets_ends_in_3(synth: Synth, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    ended = synth(*SMALL_SOLVE, "--mem-limit", "min", "--target", "100ms", "-o", path)
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
        (("--mem-limit", "min", "--target", "9" * 400 + "%"), "give at most 1000000%"),
        (("--mem-limit", "min", "--target", "9" * 400 + "s"), "give at most 300000h"),
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
    ended = synth(*SMALL_SOLVE, *arguments)
    assert (ended.code, ended.stdout) == (2, "")
    assert words in ended.stderr


def test_recomputing_the_first_stages_makes_a_tight_plan_shorter(
    synth: Synth, tmp_path: Path
) -> None:
    values = {}
    for choice in ("none", "auto", "0"):
        path = tmp_path / f"{choice}.json"
        ended = synth(
            *("solve", NAME, "--ranks", "4", "--micro-batches", "8", "--format"),
            *("json", "--mem-limit", "24GB", "--time-limit", "1s", "--recompute", choice),
            *("--placement", "linear", "--partition", "even"),
            *("--deterministic", "--workers", "1", "-o", path),
        )
        assert ended.code == 0, ended.stderr
        found = json.loads(ended.stdout)
        values[choice] = found["value_us"]
        assert found["lower_bound_us"] <= found["value_us"]
        recomputed = found["recomputed"] or found["recomputed_layers"]
        assert bool(recomputed) == (choice != "none")
        assert synth("check", path).code == 0
    assert values["auto"] <= values["0"] < values["none"]
    shown = synth("show", tmp_path / "0.json")
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
    ended = synth("solve", NAME, "--ranks", "4", "--micro-batches", "8", *given)
    assert ended.code == 2
    assert message in ended.stderr


def test_a_search_that_ended_by_itself_says_what_that_means(synth: Synth) -> None:
    # With R right before B this is optimal; the bound is for R anywhere in stage 0.
    question = ("solve", NAME, "--ranks", "2", "--micro-batches", "3", "--mem-limit", "40GB")
    stages = ("--placement", "linear", "--partition", "10,14")
    ended = synth(*question, *stages, "--recompute", "0", "--gap", "0%", "--time-limit", "90s")
    assert ended.code == 0
    assert "status: nothing better found" in ended.stdout
    assert "nothing better found: every part of the search has ended, and more" in ended.stdout
    words = " ".join(ended.stdout.split())
    assert "it is not proven that there is nothing better between the bound and the plan" in words


def test_where_no_stage_fits_recomputed_layers_do(synth: Synth, tmp_path: Path) -> None:
    asked = ("solve", NAME, "--ranks", "4", "--micro-batches", "8", "--mem-limit", "12GB")
    search = ("--time-limit", "1s", "--deterministic", "--workers", "1")
    effort = (*search, "--placement", "linear", "--partition", "even")
    assert synth(*asked, *effort, "--recompute", "all").code == 3
    path = tmp_path / "plan.json"
    ended = synth(*asked, *effort, "--recompute", "auto", "-o", path)
    assert ended.code == 0 and "recomputed: layers " in ended.stdout
    assert Plan.load(path).recomputed_layers
    assert synth("check", path, "--prove").code == 0
    few = synth(*asked[:-1], "7GB", *effort, "--recompute", "auto")
    assert few.code == 3 and "no schedule fits for this partition" in few.stderr
    assert "whatever is recomputed" in few.stderr
