"""Plans whose F and BW run at once, through the commands."""

import json
from pathlib import Path

import pytest

import synth as library
from synth.layer_times import LayerTimes
from synth.profile import Profile
from synth.schedule.files.plan_file import Plan
from tests.cli.conftest import Synth

SIZES = ("--ranks", "2", "--micro-batches", "6")


def saved(folder: Path, name: str, pair_us: float | None) -> Path:
    layers = [
        LayerTimes(
            name="block",
            count=8,
            forward_us=1000,
            backward_us=2000,
            pair_us=pair_us,
            parameter_bytes=1000,
            saved_bytes=1000,
            output_bytes=10,
        )
    ]
    Profile.from_times(name, layers).save(folder / f"{name}.json")
    return folder / f"{name}.json"


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    return saved(tmp_path, "moe", 2200)


@pytest.fixture
def plan_path(tmp_path: Path, profile: Path) -> Path:
    plan = library.simulate(
        "dualpipe-v:overlap", str(profile), ranks=2, micro_batches=6, partition="even"
    )
    plan.save(tmp_path / "plan.json")
    return tmp_path / "plan.json"


def test_a_plan_with_pairs_is_checked_and_proven(
    synth: Synth, plan_path: Path, profile: Path
) -> None:
    ended = synth("check", plan_path, "--profile", profile, "--prove")
    assert ended.code == 0
    assert "proven again for schedules with the same ops" in ended.stdout


def test_an_older_plan_has_no_time_hidden(synth: Synth, plan_path: Path) -> None:
    data = json.loads(plan_path.read_text())
    data["schema_version"] = 12
    plan_path.write_text(json.dumps(data))
    ended = synth("check", plan_path)
    assert ended.code != 0
    assert "costs.stages.hidden_us came with schema_version 13" in ended.stderr


def test_the_pairs_go_through_pytorchs_file(
    synth: Synth, plan_path: Path, profile: Path, tmp_path: Path
) -> None:
    csv, again = tmp_path / "plan.csv", tmp_path / "again.json"
    assert synth("export", plan_path, "-o", csv).code == 0
    assert "OVERLAP_F_B" in csv.read_text()
    assert synth("import", csv, profile, "-o", again).code == 0
    first, second = Plan.load(plan_path), Plan.load(again)
    assert second.programs == first.programs
    assert second.claim.makespan_us == first.claim.makespan_us


def test_without_a_time_at_once_they_are_read_one_after_the_other(
    synth: Synth, plan_path: Path, tmp_path: Path
) -> None:
    csv, again = tmp_path / "plan.csv", tmp_path / "again.json"
    synth("export", plan_path, "-o", csv)
    ended = synth("import", csv, saved(tmp_path, "dense", None), "-o", again)
    assert ended.code == 0
    assert "(OVERLAP_F_B) run one after the other in the plan" in ended.stderr
    plain = library.simulate(
        "dualpipe-v", str(tmp_path / "dense.json"), ranks=2, micro_batches=6, partition="even"
    )
    assert Plan.load(again).programs == plain.programs


def test_a_search_for_a_runtime_without_pairs_takes_the_order_alone(
    synth: Synth, plan_path: Path, profile: Path, tmp_path: Path
) -> None:
    made = tmp_path / "solved.json"
    command = ("solve", profile, *SIZES, "--placement", "v", "--partition", "even")
    options = ("--for", "torch", "--time-limit", "2s", "-o", made)
    ended = synth(*command, "--hint", plan_path, *options)
    assert ended.code == 0
    found = Plan.load(made)
    assert not found.schedule().overlapped
    assert "runs F and BW at once, which no search does" in ended.stderr
    assert "synth compare lists published schedules that do" in " ".join(ended.stderr.split())
    assert found.claim.makespan_us > Plan.load(plan_path).claim.makespan_us


def test_a_search_answers_with_a_published_schedule_that_has_pairs(
    synth: Synth, plan_path: Path, profile: Path, tmp_path: Path
) -> None:
    made = tmp_path / "solved.json"
    command = ("solve", profile, *SIZES, "--placement", "v", "--partition", "even")
    ended = synth(*command, "--time-limit", "2s", "-o", made)
    assert ended.code == 0
    assert Plan.load(made).programs == Plan.load(plan_path).programs
    assert "published schedules whose F and BW run at once" in " ".join(ended.stderr.split())
    assert "v (dualpipe-v:overlap)" in ended.stdout
    assert synth("check", made, "--profile", profile, "--prove").code == 0


def test_an_explanation_tries_orders_with_pairs(synth: Synth, plan_path: Path) -> None:
    ended = synth("explain", plan_path, "--time-limit", "4s", "--workers", "1")
    assert ended.code == 0
    assert "F&BW" in ended.stdout
    assert "no order is searched for" not in " ".join(ended.stdout.split())
    assert "one more micro-batch" in ended.stdout


def test_a_comparison_has_rows_with_pairs_if_the_profile_has_their_times(
    synth: Synth, profile: Path, tmp_path: Path
) -> None:
    found = {}
    for path in (profile, saved(tmp_path, "dense", None)):
        ended = synth(
            *("compare", path, *SIZES, "--no-solve", "--partition", "even", "--mem-limit", "none"),
            *("--time-limit", "90s", "--format", "json"),
        )
        assert ended.code == 0
        names = [each["name"] for each in json.loads(ended.stdout)["schedules"]]
        found[path.stem] = {name for name in names if name.endswith("overlap")}
    assert found["moe"] >= {"dualpipe-v:overlap", "interleaved:2,overlap"}
    assert found["dense"] == set()


def test_a_bound_for_fewer_pairs_is_not_proven(synth: Synth, plan_path: Path) -> None:
    plan = Plan.load(plan_path)
    work_us = max(plan.check()[1].work_us)
    claim = plan.claim.replace(lower_bound_us=work_us, gap=1 - work_us / plan.claim.makespan_us)
    plan.replace(claim=claim).save(plan_path)
    ended = synth("check", plan_path, "--prove", "--time-limit", "10s")
    assert ended.code == 4
    assert plan.claim.lower_bound_us < work_us


def test_jaxpps_module_says_that_it_has_no_pairs(
    synth: Synth, plan_path: Path, tmp_path: Path
) -> None:
    ended = synth("export", plan_path, "--to", "jaxpp", "-o", tmp_path / "plan.py")
    assert ended.code == 0
    assert "runs F and BW at once, and JaxPP one task after the other" in ended.stderr


def test_the_time_of_both_at_once_is_in_the_table_of_a_profile(
    synth: Synth, tmp_path: Path
) -> None:
    (tmp_path / "times.csv").write_text("name,forward_ms,backward_ms,pair_ms\na,1,2,2.5\n")
    ended = synth("profile", tmp_path / "times.csv", "-o", tmp_path / "made.json")
    assert ended.code == 0
    assert "F and BW at once: 2.500 ms, apart 3.000 ms" in ended.stdout + ended.stderr
