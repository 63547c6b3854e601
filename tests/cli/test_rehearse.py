"""`synth rehearse` as a user meets it: the ranks of a plan, one after the other."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from synth.estimates.named import estimated
from synth.families import generate
from synth.profile.workload import Workload
from synth.schedule.files.plan_file import Plan
from tests.cli.conftest import TINY, Synth, make_run_plan
from tests.cli.forked_command import run_forked

COMMAND = [sys.executable, "-m", "synth", "rehearse"]


def rehearse(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *map(str, arguments)], capture_output=True, text=True, timeout=600
    )


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    workload = Workload(model="gpt", arguments=TINY, micro_batch_size=2, sequence_length=32)
    return make_run_plan(workload, (3, 3), tmp_path_factory.mktemp("plan"))


@pytest.mark.slow
def test_all_ranks_are_measured_and_the_iteration_is_simulated(plan: Path, tmp_path: Path) -> None:
    written = tmp_path / "rehearsal.json"
    ended = rehearse(plan, "--steps", "4", "-o", written, "--width", "100")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("REHEARSED")
    assert "rank 1  planned" in ended.stdout and "rehearsed" in ended.stdout
    assert "rank 0 of 2 on cpu\nrank 1 of 2 on cpu\n" in ended.stderr
    assert "Memory block" not in ended.stderr and "Traceback" not in ended.stderr
    found = json.loads(written.read_text())
    assert (found["format"], found["rehearsed"], found["losses"]) == ("synth-run", True, [])
    peaks = zip(
        found["comparison"]["measured_peak_bytes"], Plan.load(plan).claim.peak_bytes, strict=True
    )
    assert all(0.97 * planned < peak <= planned for peak, planned in peaks)


@pytest.mark.slow
def test_one_rank_alone_leaves_the_others_unknown(plan: Path) -> None:
    ended = rehearse(plan, "--ranks", "1", "--steps", "3", "--format", "json", "--quiet")
    assert (ended.returncode, ended.stderr) == (0, "")
    found = json.loads(ended.stdout)
    assert found["devices"] == [None, "cpu"]
    assert found["comparison"]["measured_peak_bytes"][0] is None
    assert {op["stage"] for op in found["comparison"]["ops"]} == {1}


@pytest.mark.slow
def test_arrivals_as_planned_are_called_emulated(plan: Path, tmp_path: Path) -> None:
    written = tmp_path / "rehearsal.json"
    one = ("--ranks", "1", "--steps", "3")
    ended = run_forked("rehearse", plan, *one, "--planned-arrivals", "-o", written)
    assert ended.returncode == 0, ended.stderr
    assert "its arrival EMULATED, as planned" in ended.stdout
    assert "with emulated" in ended.stdout
    left, waited = json.loads(written.read_text())["waited_us"]
    assert left is None and waited > 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--ranks", "0,2"), "rank 2 was asked for, the plan has ranks 0 to 1"),
        (("--ranks", "first"), "--ranks 'first' is not understood"),
        (("--steps", "2"), "--steps"),
        (("-o", "PLAN"), "-o"),
    ],
)
def test_wrong_options_are_refused_in_one_line(
    synth: Synth, plan: Path, arguments: tuple[str, ...], said: str
) -> None:
    words = (str(plan) if given == "PLAN" else given for given in arguments)
    ended = synth("rehearse", plan, *words)
    assert ended.code == 2 and said in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_plan_of_a_published_profile_has_no_model(synth: Synth, plan_file: Path) -> None:
    pytest.importorskip("torch")
    ended = synth("rehearse", plan_file)
    assert ended.code == 2 and "a profile without a model" in ended.stderr


@pytest.fixture(scope="module")
def estimated_plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("estimated") / "plan.json"
    Plan.of(estimated("llama3-8b-h100-tp1"), [17, 17], generate("1f1b", 2, 4)).save(path)
    return path


@pytest.mark.parametrize("command", ["run", "rehearse"])
def test_a_plan_of_an_estimated_profile_is_called_so(
    synth: Synth, estimated_plan: Path, command: str
) -> None:
    pytest.importorskip("torch")
    ended = synth(command, estimated_plan)
    assert ended.code == 2
    assert "is for 'llama3-8b-h100-tp1', an estimated profile without a model" in ended.stderr


@pytest.mark.parametrize("command", ["explain", "check", "show"])
def test_answers_from_an_estimated_plan_are_marked(
    synth: Synth, estimated_plan: Path, command: str
) -> None:
    ended = synth(command, estimated_plan)
    assert ended.code == 0 and "estimated" in ended.stdout
