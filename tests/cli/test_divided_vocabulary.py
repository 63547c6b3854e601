"""Plans with a divided vocabulary, through the commands."""

import json
from contextlib import suppress
from pathlib import Path

import pytest

import synth as library
from synth.errors import SynthError
from synth.families import variants_for
from synth.schedule.files.plan_file import Plan
from tests.cli.conftest import Synth

PROFILE = "llama3-8b-h100-tp1"
SIZES = ("--ranks", "4", "--micro-batches", "12")


@pytest.fixture(params=["1f1b-vocab", "1f1b-vocab:1"])
def plan_path(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    plan = library.simulate(request.param, PROFILE, ranks=4, micro_batches=12)
    plan.save(tmp_path / "plan.json")
    return tmp_path / "plan.json"


def test_a_plan_has_its_parts_as_layers_and_is_checked_against_its_profile(
    synth: Synth, plan_path: Path
) -> None:
    plan = Plan.load(plan_path)
    assert plan.partition == (1, 1, 1, 1, 8, 8, 8, 8, 1, 1, 1, 1)
    assert (plan.layers[0], plan.layers[-1]) == ("embedding.part.0", "head.part.3")
    ended = synth("check", plan_path, "--profile", PROFILE, "--prove")
    assert ended.code == 0
    assert "those of profile llama3-8b-h100-tp1" in ended.stdout
    assert "proven again for schedules with the same ops" in ended.stdout


def test_every_rank_has_the_same_work_and_the_same_parameters(plan_path: Path) -> None:
    plan = Plan.load(plan_path)
    assert len(set(plan.check()[1].work_us)) == 1
    held = plan.placed.held
    static = {plan.costs.static_bytes([stage for stage, _ in stages]) for stages in held}
    assert len(static) == 1


def test_an_older_plan_has_whole_layers(synth: Synth, plan_path: Path) -> None:
    data = json.loads(plan_path.read_text())
    plan_path.write_text(json.dumps({**data, "schema_version": 13}))
    ended = synth("check", plan_path)
    assert ended.code != 0
    assert "vocabulary came with schema_version 14" in ended.stderr


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("emulate",), "which synth plans and does not execute"),
        (("export", "-o", "plan.csv"), "divides embedding and head by vocabulary"),
        (("export", "--to", "megatron"), "divides embedding and head by vocabulary"),
    ],
)
def test_what_does_not_execute_it_says_so(
    synth: Synth, plan_path: Path, command: tuple[str, ...], words: str
) -> None:
    ended = synth(command[0], plan_path, *command[1:])
    assert ended.code != 0
    assert ended.stderr.startswith("error:"), "it is refused before anything is computed"
    assert words in " ".join(ended.stderr.split())


def test_a_run_refuses_it(plan_path: Path) -> None:
    plan = Plan.load(plan_path)
    for given in (lambda: plan.mesh(), lambda: plan.modules(0, [None] * len(plan.layers))):
        with pytest.raises(SynthError, match="which synth plans and does not execute"):
            given()


def test_a_search_does_not_begin_with_it(synth: Synth, plan_path: Path) -> None:
    for hint in (str(plan_path), "1f1b-vocab"):
        command = ("solve", PROFILE, *SIZES, "--placement", "looped:3", "--time-limit", "1s")
        ended = synth(*command, "--hint", hint)
        assert ended.code != 0
        text = " ".join(ended.stderr.split())
        assert "divides the vocabulary over all ranks, and the search orders whole layers" in text


def test_a_comparison_has_it_beside_1f1b(synth: Synth) -> None:
    ended = synth(
        *("compare", PROFILE, *SIZES, "--mem-limit", "none", "--no-solve"),
        *("--only", "1f1b", "--only", "1f1b-vocab", "--only", "1f1b-vocab:1", "--format", "json"),
    )
    assert ended.code == 0, ended.stderr
    rows = {each["name"]: each for each in json.loads(ended.stdout)["schedules"]}
    assert rows["1f1b-vocab"]["makespan_us"] < rows["1f1b"]["makespan_us"]


def test_an_explanation_says_what_it_leaves_out(synth: Synth, plan_path: Path) -> None:
    ended = synth("explain", plan_path, "--time-limit", "2s", "--workers", "1")
    assert ended.code == 0
    text = " ".join(ended.stdout.split())
    assert "no order is searched for, because the vocabulary is divided over all ranks" in text
    assert "single pipelines of whole layers alone" in text


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3, 5, 9])
@pytest.mark.parametrize("profile", ["gpt-bytes-cpu", "zb-1.5b-p8-m24"])
def test_every_family_is_simulated_or_refused(profile: str, ranks: int) -> None:
    simulated = 0
    for name in variants_for(ranks, 10):
        with suppress(SynthError):
            simulated += library.simulate(name, profile, ranks=ranks, micro_batches=4) is not None
    assert simulated > 10
