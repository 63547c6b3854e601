"""`synth solve --placement auto` and `--partition search`: what they answer and refuse."""

import json
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from synth.cli.answer import candidates
from synth.cli.work import solve
from synth.families import generate
from synth.objective import BoundScope
from synth.options.arguments.solve import SolveArguments
from synth.options.defaults import choices
from synth.options.values import written_partition
from synth.plan.choose.candidates import placements_to_try
from synth.plan.weight_passing.moving_families import moving_families
from synth.profile import Profile
from synth.profiles import find
from synth.records.command_option import from_values
from synth.schedule.files.plan_file import Plan
from tests.cli.conftest import NAME, Synth

SIZE = ("solve", NAME, "--ranks", "2", "--micro-batches", "2")
AUTO = (*SIZE, "--placement", "auto", "--partition", "even", "--recompute", "none")

# The usual placements, and what published schedules stand on besides, with one copy of the weights.
EVERY = placements_to_try(2, 24)
NAMES = [name for name, where in EVERY.items() if len(where.ranks) == 1]


@pytest.mark.parametrize("recompute", ["none", "auto"])
def test_the_bound_of_the_one_cut_that_is_searched_holds_for_this_partition(
    synth: Synth, tmp_path: Path, recompute: str
) -> None:
    path, limit = tmp_path / "plan.json", ("--mem-limit", "35GB", "--deterministic")
    asked = (*SIZE, "--placement", "v", "--recompute", recompute, *limit, "--time-limit", "0.1s")
    ended = synth(*asked, "--gap", "0", "-o", path)
    assert "holds for this partition" in ended.stdout
    assert Plan.load(path).claim.bound_holds_for == BoundScope.PARTITION
    checked = synth("check", path, "--prove", "--time-limit", "10s")
    assert checked.code == 0
    assert "proven again for this partition" in checked.stdout
    assert "trust" not in checked.stdout


def test_it_tells_of_every_placement_and_saves_the_best(synth: Synth, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    ended = synth(*AUTO, "--time-limit", "3s", "--all", "-o", path)
    assert ended.code == 0
    table = ended.stdout.split("\nplacement", 1)[1].split("best: ")[0]
    rows = {line.split()[0]: line for line in table.splitlines() if line}
    assert set(rows) >= set(NAMES)
    for name in NAMES:
        assert re.search(r" \d+\.\d{3} |cannot win|not tried", rows[name])
    assert "holds for the placements and partitions in this table" in ended.stdout
    checked = synth("check", path)
    assert checked.code == 0
    plan = Plan.load(path)
    assert plan.arguments["placement"] == "auto"
    assert plan.schedule().placement in placements_to_try(2, 24).values()


def test_the_best_candidates_are_shown_unless_all_are_asked_for(
    synth: Synth, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(candidates, "_SHOWN", 2)
    for more, num_rows in (((), 2), (("--all",), len(NAMES))):
        ended = synth(*AUTO, "--time-limit", "1s", *more)
        table = ended.stdout.split("\nplacement", 1)[1].split("best: ")[0]
        rows = [line for line in table.splitlines() if line.split(" ")[0] in NAMES]
        assert len(rows) >= num_rows if more else len(rows) == num_rows
        assert (" more: --all)" in table) == (not more)


def test_as_json_the_answer_is_the_least_of_all(synth: Synth) -> None:
    asked = ("--time-limit", "3s", "--mem-limit", "45GB", "--format", "json")
    found = json.loads(synth(*AUTO, *asked).stdout)
    values = [tried["value_us"] for tried in found["candidates"] if tried["value_us"] is not None]
    assert found["value_us"] == min(values) == values[0]
    assert found["lower_bound_us"] <= found["value_us"]
    best = found["candidates"][0]
    assert max(best["peak_bytes"]) <= 45 * 10**9
    where = placements_to_try(2, 24)[best["name"]]
    assert [list(ranks) for ranks in where.ranks] == found["placement"]


def test_a_dry_run_says_what_can_fit(synth: Synth) -> None:
    ended = synth(*AUTO, "--mem-limit", "40GB", "--dry-run")
    assert ended.code == 0
    rows = {line.split()[0]: line for line in ended.stdout.splitlines() if "," in line}
    assert " yes " in rows["looped:4"] and "3,3,3,3,3,3,3,3" in rows["looped:4"]
    found = json.loads(synth(*AUTO, "--mem-limit", "40GB", "--dry-run", "--format", "json").stdout)
    assert [tried["name"] for tried in found["candidates"]] == NAMES


@pytest.mark.parametrize("more", [("--dry-run",), ("--time-limit", "5s")])
def test_where_nothing_fits_it_ends_in_3(synth: Synth, more: tuple[str, ...]) -> None:
    ended = synth(*AUTO, "--mem-limit", "1GB", *more)
    assert ended.code == 3
    assert "infeasible with all candidates; with " in ended.stderr
    assert "smallest feasible --mem-limit" in ended.stderr


def test_layers_per_stage_leave_placements_of_as_many_stages(synth: Synth) -> None:
    ended = synth(*AUTO, "--partition", "6,6,6,6", "--time-limit", "1s", "--format", "json")
    found = json.loads(ended.stdout)
    assert {tried["name"] for tried in found["candidates"]} == {"looped:2", "v"}
    assert found["partition"] == [6, 6, 6, 6]
    why = "the placement has 2 stages, and --partition has the layers of 4"
    assert f"\nnot linear: {why}; give one number for each stage\n" in ended.stderr


def test_few_layers_leave_few_placements(synth: Synth) -> None:
    wide = ("--ranks", "13", "--micro-batches", "2", "--dry-run")
    ended = synth("solve", NAME, "--placement", "auto", *wide)
    # Without --placement nobody asked for the impossible ones, so none is listed.
    assert "not v:" not in synth("solve", NAME, *wide).stdout
    assert ended.code == 0
    assert "not v: 26 stages asked for, the profile has 24 layers" in ended.stdout
    assert "linear " in ended.stdout and "bidirectional" not in ended.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--hint", "zb-h1"), "--hint and --placement auto do not go together"),
        (("--mem-limit", "min", "--target", "105%"), "--target and --placement auto do not go"),
        (("--mem-limit", "min", "--target", "steady"), "--target and --placement auto do not go"),
        (("--recompute", "0,1"), "with --placement auto give none, all, auto"),
        (("--recompute", "5,6"), "with --placement auto give none, all, auto"),
        (("--objective", "speed"), "--objective"),
        (
            ("--partition", "5,5,5,5,4"),
            "no placement is possible; linear: the placement has 2 stages",
        ),
        (
            ("--ranks", "25"),
            "no placement is possible; linear: 25 stages asked for, the profile has 24 layers",
        ),
    ],
)
def test_what_is_for_one_placement_is_refused(
    synth: Synth, arguments: tuple[str, ...], words: str
) -> None:
    ended = synth(*AUTO, *arguments)
    assert (ended.code, ended.stdout) == (2, "")
    assert words in ended.stderr


def test_one_rank_has_one_placement(synth: Synth) -> None:
    alone = ("solve", NAME, "--ranks", "1", "--micro-batches", "2")
    ended = synth(*alone)
    assert ended.code == 0
    assert "24 layers on 1 rank as 24, " in ended.stderr
    assert "proven optimal" in ended.stdout


TIGHT = (
    *("solve", NAME, "--placement", "linear", "--recompute", "none"),
    *("--ranks", "4", "--micro-batches", "8", "--mem-limit", "18.3GB"),
)


def test_a_partition_is_sought_that_serves_better_under_a_tight_limit(
    synth: Synth, tmp_path: Path
) -> None:
    path = tmp_path / "plan.json"
    asked = ("--partition", "search", "--time-limit", "4s", "-o", path)
    ended = synth(*TIGHT, *asked)
    assert ended.code == 0
    assert "layers per stage" in ended.stdout
    assert synth("check", path).code == 0
    plan = Plan.load(path)
    assert plan.partition != (6, 6, 6, 6) and sum(plan.partition) == 24
    found = json.loads(synth(*TIGHT, *asked, "--format", "json").stdout)
    values = {
        tuple(tried["partition"]): tried["value_us"]
        for tried in found["candidates"]
        if tried["value_us"] is not None
    }
    assert found["value_us"] == min(values.values())
    assert tuple(found["partition"]) != (6, 6, 6, 6)
    assert found["lower_bound_us"] <= min(tried["lower_bound_us"] for tried in found["candidates"])
    assert found["bound_holds_for"] == plan.claim.bound_holds_for == "all partitions"
    assert "holds for all partitions" in ended.stdout


def test_a_deterministic_search_uses_its_whole_limit_and_can_be_repeated(synth: Synth) -> None:
    # Two workers that took turns would abort in OR-Tools 9.15 at such a limit.
    asked = (*TIGHT, "--partition", "search", "--deterministic", "--workers", "2")
    limit = ("--time-limit", "0.3s", "--format", "json")
    first, second = (json.loads(synth(*asked, *limit).stdout) for _ in range(2))
    for found in (first, second):
        assert found["stopped_by"] in ("time limit", "optimal", "gap")
        del found["seconds"]
        for tried in found["candidates"]:
            del tried["seconds"]
    assert first == second


def test_each_rank_may_have_a_limit_of_its_own(synth: Synth) -> None:
    asked = ("--mem-limit", "18GB,25GB,30GB,35GB", "--partition", "search", "--time-limit", "1s")
    found = json.loads(synth(*TIGHT[:-2], *asked, "--format", "json").stdout)
    caps = [18, 25, 30, 35]
    assert all(peak <= cap * 10**9 for peak, cap in zip(found["peak_bytes"], caps, strict=True))


def test_both_may_be_left_to_the_search(synth: Synth) -> None:
    asked = ("--partition", "search", "--placement", "auto", "--time-limit", "2s")
    ended = synth(*TIGHT, *asked, "--format", "json")
    to_try = re.search("to try: (.*)", ended.stderr)
    assert to_try is not None and {"linear", "v", "looped:2"} <= set(to_try[1].split("; "))
    found = json.loads(ended.stdout)
    assert {"linear", "v", "looped:2"} <= {tried["name"] for tried in found["candidates"]}
    assert found["lower_bound_us"] <= found["value_us"]
    assert max(found["peak_bytes"]) <= 18.3e9


def too_late(
    work: Callable[[threading.Event], object], until: float, late: Callable[[], object]
) -> object:
    """Run work, and answer as if it had not ended in time."""
    work(threading.Event())
    return late()


@pytest.mark.parametrize(
    "choice",
    [
        ("--placement", "linear", "--partition", "even", "--recompute", "none"),
        ("--placement", "linear", "--partition", "even", "--versions", "2bw"),
        ("--hint", "zb-h1", "--recompute", "0"),
    ],
)
def test_one_candidate_has_an_answer_if_its_search_does_not_end_in_time(
    synth: Synth, monkeypatch: pytest.MonkeyPatch, choice: tuple[str, ...]
) -> None:
    monkeypatch.setattr(solve, "run_interruptibly", too_late)
    ended = synth(*SIZE[:-1], "8", *choice, "--time-limit", "2s", "--format", "json")
    assert ended.code == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert found["value_us"] is not None and "candidates" not in found
    if "--versions" in choice:
        assert " of a micro-batch  bound " in ended.stderr


@pytest.mark.parametrize("weights", ["auto", "gather"])
def test_places_of_weights_keep_their_names_and_bounds_if_the_search_does_not_end_in_time(
    synth: Synth, monkeypatch: pytest.MonkeyPatch, weights: str
) -> None:
    asked = (*SIZE[:-1], "4", "--link", "10us,25GB/s", "--weights", weights)
    whole = synth(*asked, "--time-limit", "6s", "--gap", "80%", "--format", "json")
    monkeypatch.setattr(solve, "run_interruptibly", too_late)
    ended = synth(*asked, "--time-limit", "6s", "--gap", "80%", "--format", "json")
    assert ended.code == 0, ended.stderr
    found, all_found = json.loads(ended.stdout), json.loads(whole.stdout)
    names = [tried["name"] for tried in found["candidates"]]
    # How many published schedules are judged depends on the time.
    published = set(moving_families(2, len(Profile.load(find(NAME)).layers)))
    assert set(names) - published == {one["name"] for one in all_found["candidates"]} - published
    assert found["candidates"][0]["value_us"] == found["value_us"]
    assert weights in (names[0].split(",")[0], "auto")
    assert found["lower_bound_us"] <= min(found["value_us"], all_found["value_us"])
    for tried in found["candidates"]:
        assert tried["value_us"] is None or tried["lower_bound_us"] <= tried["value_us"], tried
    for line in ended.stderr.splitlines():
        if " by data-parallel" in line:
            heads = ended.stderr[: ended.stderr.index(line)].splitlines()
            assert [each for each in heads if each.startswith("on ")][-1].startswith(
                "on data-parallel: "
            )


def test_an_answer_of_a_search_that_does_not_end_in_time_knows_all_placements(
    synth: Synth, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(solve, "run_interruptibly", too_late)
    ended = synth(*AUTO, "--time-limit", "2s", "--all")
    table = ended.stdout.split("\nplacement", 1)[1].split("best: ")[0]
    rows = {line.split()[0]: line for line in table.splitlines() if line}
    best = ended.stdout.split("best: ")[1].split(",")[0]
    assert set(rows) >= set(NAMES)
    assert re.search(rf"^{best} +\d+\.\d{{3}} ", rows[best])
    others = [line for name, line in rows.items() if name in NAMES and name != best]
    values = [re.search(r"^\S+ +(\d+\.\d{3}) ", line) for line in others]
    assert others and all(value is not None for value in values)  # not "no result"
    assert "\n1f1b " in ended.stdout.split("\nplacement")[0]  # nor a table without rivals


def test_stages_may_recompute_in_a_partition_that_is_sought(synth: Synth) -> None:
    asked = ("--partition", "search", "--recompute", "0,1", "--time-limit", "1s")
    found = json.loads(synth(*TIGHT, *asked, "--format", "json").stdout)
    assert found["recomputed"] == [0, 1]


@pytest.mark.parametrize(
    "option", [("--hint", "zb-h1"), ("--target", "steady", "--mem-limit", "min")]
)
def test_a_partition_that_is_sought_is_not_yet_one(synth: Synth, option: tuple[str, ...]) -> None:
    ended = synth(*TIGHT[:-2], "--partition", "search", *option)
    assert (ended.code, ended.stdout) == (2, "")
    assert f"{option[0]} and --partition auto do not go together" in ended.stderr


@pytest.mark.parametrize(("placement", "limit"), [("auto", "18GB"), ("v", "24GB")])
def test_a_dry_run_knows_of_stages_that_recompute(synth: Synth, placement: str, limit: str) -> None:
    """Under a cap that is kept only where they do; on `auto` by placements of most stages."""
    size = ("solve", NAME, "--ranks", "2", "--micro-batches", "2", "--placement", placement)
    for recompute, code in (("none", 3), ("all", 0), ("auto", 0)):
        ended = synth(*size, "--dry-run", "--mem-limit", limit, "--recompute", recompute)
        assert ended.code == code, (recompute, ended.stderr)


def test_the_least_limit_is_sought_over_all_partitions(synth: Synth, tmp_path: Path) -> None:
    plan, least = tmp_path / "plan.json", ("--mem-limit", "min", "--target", "120%")
    asked = (*TIGHT[:-2], *least, "--time-limit", "4s")
    ended = synth(*asked, "--partition", "search", "-o", plan)
    assert ended.code == 0, ended.stderr
    assert "for all partitions in this placement: " in ended.stdout
    saved = Plan.load(plan)
    assert f" = {max(saved.claim.peak_bytes)}B,\n" in ended.stdout
    assert sum(saved.partition) == 24
    assert synth("check", plan).code == 0


def test_the_least_limit_over_all_partitions_is_for_one_stage_per_rank(synth: Synth) -> None:
    least = ("--mem-limit", "min", "--target", "120%", "--partition", "search")
    ended = synth(*TIGHT[:-2], *least, "--placement", "v")
    assert (ended.code, ended.stdout) == (2, "")
    assert "exist only for one stage per rank" in ended.stderr


def test_defaults_are_all_of_them_auto_and_say_so_in_the_file(synth: Synth, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    ended = synth(*SIZE, "--mem-limit", "24GB", "--time-limit", "1s", "-o", path)
    assert ended.code == 0, ended.stderr
    arguments = Plan.load(path).arguments
    assert {arguments[name] for name in ("placement", "partition", "recompute")} == {"auto"}
    assert synth("check", path).code == 0


def arguments(**given: Any) -> SolveArguments:
    """Return the arguments of a search on four ranks."""
    return from_values(SolveArguments, {"profile": NAME, "ranks": 4, "micro_batches": 8, **given})


@pytest.mark.parametrize(
    ("given", "chosen"),
    [
        (("--recompute", "0,1"), ("linear", "auto", "0,1")),
        (("--hint", "zb-v"), ("v", "even", "auto")),
        (("--hint", "none-such"), ("linear", "even", "auto")),
        (("--partition", "5,6,7,6"), ("auto", "5,6,7,6", "auto")),
        (("--partition", "6,6,6,4,2"), ("linear", "6,6,6,4,2", "auto")),
        (("--placement", "v"), ("v", "auto", "auto")),
        (("--solver", "milp"), ("linear", "even", "none")),
    ],
)
def test_a_default_gives_way_to_what_is_for_one_placement(
    given: tuple[str, str], chosen: tuple[str, str, str]
) -> None:
    asked = arguments(**{given[0].removeprefix("--"): given[1]})
    found = choices(asked, Profile.load(find(NAME)), asked.recompute)
    sizes = written_partition(found.partition)
    assert (found.placement, sizes, found.recompute) == chosen


def test_a_plan_as_a_hint_names_the_placement_and_the_partition(tmp_path: Path) -> None:
    profile, path = Profile.load(find(NAME)), tmp_path / "plan.json"
    Plan.of(profile, (2, 3, 3, 4, 3, 3, 3, 3), generate("zb-v", 4, 8)).save(path)
    found = choices(arguments(hint=path), profile, None)
    assert (found.placement, found.partition, found.recompute) == (
        "v",
        (2, 3, 3, 4, 3, 3, 3, 3),
        "auto",
    )
    named = choices(arguments(placement="v", hint=path), profile, None)
    assert named.partition == "even"


def test_a_hint_for_the_defaults_is_taken(synth: Synth) -> None:
    asked = (*TIGHT[:2], "--ranks", "4", "--micro-batches", "4", "--hint", "zb-v")
    ended = synth(*asked, "--time-limit", "1ms")
    assert ended.code == 0, ended.stderr


def test_ranks_for_which_there_are_too_few_layers_are_refused_in_plain_words(
    synth: Synth,
) -> None:
    ended = synth("solve", NAME, "--ranks", "25", "--micro-batches", "2")
    assert ended.code == 2
    assert "25 stages asked for, the profile has 24 layers" in ended.stderr
    assert "no placement is possible" not in ended.stderr
