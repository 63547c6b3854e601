"""`synth solve --versions` and `synth compare --versions`: schedules without a flush."""

import json
from pathlib import Path

import pytest

import synth as library
from synth.errors import SynthError
from synth.schedule.files.plan_file import Plan
from synth.schedule.weight_versions import BackwardReads, ForwardReads, WeightVersions
from tests.cli.conftest import NAME, Synth

SOLVE = (
    *("solve", NAME, "--ranks", "4", "--micro-batches", "16", "--link", "10ms,10GB/s"),
    *("--deterministic", "--workers", "1", "--time-limit", "500ms", "--gap", "0"),
)
SMALL = (*SOLVE, "--ranks", "2", "--micro-batches", "8")


def test_a_plan_without_a_flush_is_one_like_any_other(synth: Synth, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    solved = synth(*SOLVE, "--versions", "2bw:every=8", "-o", path)
    assert solved.code == 0 and "2bw:every=8" in solved.stdout
    plan = Plan.load(path)
    lowered, _ = plan.check()
    assert lowered.schedule.versions == WeightVersions(
        8, ForwardReads.PREVIOUS_BATCH, BackwardReads.STASHED
    )
    claim = plan.claim.steady
    assert claim is not None and claim.lower_bound_us <= claim.micro_batch_us
    assert plan.arguments["versions"] == "2bw:every=8"
    checked = synth("check", path)
    assert checked.code == 0 and f"{claim.micro_batch_us:.1f} µs of a micro-batch" in checked.stdout
    proven = synth("check", path, "--prove")
    assert proven.code == 0 and "all orders with such versions" in proven.stdout
    is_repeating_open = claim.repeating_us > claim.lower_bound_us
    assert ("this bound is not proven again" in proven.stdout) == is_repeating_open
    shown = synth("show", path)
    assert shown.code == 0 and "of all orders with such versions: lower bound" in shown.stdout


def test_a_claim_that_the_simulation_contradicts_is_found(synth: Synth, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    assert synth(*SOLVE, "--versions", "none", "-o", path).code == 0
    data = json.loads(path.read_text())
    data["claim"]["steady"]["micro_batch_us"] -= 1
    path.write_text(json.dumps(data))
    refused = synth("check", path)
    assert refused.code == 5 and "µs for a micro-batch while the pipeline is full" in refused.stderr


def test_a_bound_above_the_proven_one_is_refused(synth: Synth, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    assert synth(*SMALL, "--versions", "stash", "--mem-limit", "45GB", "-o", path).code == 0
    data = json.loads(path.read_text())
    steady = data["claim"]["steady"]
    assert steady["lower_bound_us"] < steady["micro_batch_us"]
    steady["lower_bound_us"] = steady["repeating_us"] = steady["micro_batch_us"]
    del data["fingerprint"]
    path.write_text(json.dumps(data))
    refused = synth("check", path, "--prove")
    assert refused.code == 5 and "above the one proven for all orders" in refused.stderr


def test_below_the_published_need_fewer_are_in_flight(synth: Synth) -> None:
    ended = synth(*SMALL, "--versions", "stash", "--mem-limit", "40GB", "--format", "json")
    found = json.loads(ended.stdout)
    rival = found["steady"]["rivals"][0]
    assert (rival["name"], rival["fits"]) == ("pipedream", False)
    assert max(found["peak_bytes"]) <= 40 * 10**9 < max(rival["peak_bytes"])
    assert found["steady"]["micro_batch_us"] >= found["steady"]["lower_bound_us"]
    refused = synth(*SMALL, "--versions", "stash", "--mem-limit", "10GB")
    assert refused.code == 3 and "for one micro-batch at a time" in refused.stderr


def test_compare_lists_it_with_its_delay_beside_the_others(synth: Synth) -> None:
    problem = ("compare", NAME, "--ranks", "2", "--micro-batches", "12", "--time-limit", "5s")
    asked = ("--only", "1f1b", "--only", "pipedream", "--placement", "linear", "--versions")
    compared = synth(*problem, *asked, "stash", "--format", "json")
    rows = {row["name"]: row for row in json.loads(compared.stdout)["schedules"]}
    found, published = rows["solved stash"], rows["pipedream"]
    assert found["delay"] == published["delay"] == 1 and rows["1f1b"]["delay"] == 0
    assert found["steady_us"] <= published["steady_us"]
    assert synth(*problem, *asked, "stashed").code == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("3bw",), "--versions '3bw' is not understood; give 2bw"),
        (("2bw:8",), "--versions '2bw:8' is not understood"),
        (("stash:every=4",), "updates after every micro-batch"),
        (("2bw:every=5",), "does not divide 16"),
        (("2bw", "--weights", "ring"), "--weights ring and --versions 2bw do not go together"),
        (("2bw", "--offload"), "--offload and --versions 2bw do not go together"),
        (("2bw", "--placement", "auto"), "give linear, looped:N, v or wave:N"),
        (("2bw", "--placement", "bidirectional"), "is for one copy of each stage"),
        (("2bw", "--objective", "period"), "in the full pipeline is minimized"),
        (("2bw", "--recompute", "all"), "--recompute all and --versions 2bw"),
        (("2bw", "--hint", "1f1b"), "--hint 1f1b and --versions 2bw"),
    ],
)
def test_options_that_do_not_go_with_it_are_refused(
    synth: Synth, arguments: tuple[str, ...], message: str
) -> None:
    ended = synth(*SOLVE, "--versions", *arguments)
    assert ended.code == 2 and message in ended.stderr


def test_a_dry_run_shows_the_rule_of_the_versions(synth: Synth) -> None:
    asked = (*SOLVE, "--dry-run", "--mem-limit", "60GB", "--versions")
    shown = synth(*asked, "2bw:every=8")
    assert shown.code == 0
    assert "--versions 2bw:every=8: never flushed; every 8, F batch-1, B stashed" in shown.stdout
    assert "at most 2 versions of a stage" in shown.stdout
    assert "not decided before the search" in shown.stdout  # versions take memory, too
    found = json.loads(synth(*asked, "stash", "--format", "json").stdout)
    expected = {"every": 1, "forward": "newest", "backward": "stashed", "most": 4}
    assert found["versions"] == expected
    assert synth(*SOLVE, "--dry-run", "--versions", "2bw", "--mem-limit", "10GB").code == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--placement", "linear", "--recompute", "all"), "--recompute all and --versions 2bw"),
        (("--placement", "linear", "--recompute", "0,1"), "--recompute 0,1 and --versions 2bw"),
        (("--recompute", "auto"), "--recompute auto and --versions 2bw"),
        (("--placement", "v"), "--placement v and --versions 2bw"),
    ],
)
def test_compare_refuses_options_that_the_row_would_leave_out(
    synth: Synth, arguments: tuple[str, ...], message: str
) -> None:
    problem = ("compare", NAME, "--ranks", "2", "--micro-batches", "12", "--only", "1f1b")
    ended = synth(*problem, "--time-limit", "100ms", "--versions", "2bw", *arguments)
    assert ended.code == 2 and message in ended.stderr


def test_the_library_solves_without_a_flush_too() -> None:
    told: list[Plan] = []
    plan = library.solve(
        NAME,
        ranks=2,
        micro_batches=12,
        versions="vertical",
        time_limit=5,
        workers=1,
        on_improvement=told.append,
    )
    assert plan.claim.steady is not None and plan.claim.steady.gap <= 0.005
    assert told and told[-1].claim.steady is not None
    with pytest.raises(SynthError, match="not understood"):
        library.solve(NAME, ranks=2, micro_batches=12, versions="newest")
