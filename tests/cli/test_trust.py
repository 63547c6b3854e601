"""A plan is data: no command imports, runs or opens what it names unless the user says so."""

from pathlib import Path

import pytest

from synth.cli.read.own_model import read_model
from synth.errors import SynthError
from synth.profile.workload import Workload
from synth.schedule.files.plan_file import Plan
from tests.cli.conftest import Synth
from tests.cli.small_runs import MODEL, plan_of_own, started


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan `plan.json` of a harmless model; it names `canary.py`, whose import makes `canary`."""
    folder = tmp_path_factory.mktemp("trust")
    path = plan_of_own(MODEL, folder)
    (folder / "canary.py").write_text(f"open({str(folder / 'canary')!r}, 'w')\n{MODEL}")
    plan = Plan.load(path)
    named = f"{folder / 'canary.py'}:layers"
    plan.replace(workload=plan.workload.replace(model=named)).save(path)
    return folder


@pytest.fixture
def canary(folder: Path) -> Path:
    path = folder / "canary"
    path.unlink(missing_ok=True)
    return path


def run(folder: Path, text: Path, *options: str, **environment: str) -> tuple[int, str]:
    """The exit code and stderr of a run in processes of its own."""
    arguments = (folder / "plan.json", "--data", text, "--steps", 3, *options)
    with started(*arguments, variables=environment) as process:
        _, stderr = process.communicate(timeout=600)
    assert process.returncode is not None
    return process.returncode, stderr


def test_run_says_what_the_plan_names_and_which_option_to_give(
    synth: Synth, folder: Path, canary: Path, text: Path
) -> None:
    ended = synth("run", folder / "plan.json", "--data", text, "--device", "cpu")
    code, stderr = ended.code, ended.stderr
    assert code == 2
    assert stderr.startswith("error: the plan names a model that is not built in, ")
    assert "canary.py:layers" in stderr
    assert "--model" in stderr and "--trust" in stderr
    assert stderr.count("\n") == 1
    assert not canary.exists()


def test_a_worker_of_torchrun_imports_nothing_either(
    folder: Path, canary: Path, text: Path
) -> None:
    world = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}
    code, stderr = run(folder, text, **world, MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    assert code == 2
    assert "--trust to import what the plan names" in stderr
    assert not canary.exists()


def test_a_module_with_a_function_that_runs_commands_is_not_called(
    synth: Synth, folder: Path, canary: Path, text: Path, tmp_path: Path
) -> None:
    plan = Plan.load(folder / "plan.json")
    hostile = {"model": "os:system", "arguments": {"command": f"touch {canary}"}}
    plan.replace(workload=plan.workload.replace(**hostile)).save(tmp_path / "plan.json")
    ended = synth("run", tmp_path / "plan.json", "--data", text, "--device", "cpu")
    assert ended.code == 2
    assert "'os:system'" in ended.stderr
    assert not canary.exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "plan.json"),
        ("check", "plan.json", "--format", "json"),
        ("show", "plan.json", "--trace", "trace.json", "--perfetto", "perfetto.json"),
        ("export", "plan.json", "-o", "plan.csv"),
        ("emulate", "plan.json", "--steps", "3"),
    ],
    ids=lambda arguments: " ".join(arguments[:1]),
)
def test_no_other_command_imports_what_a_plan_names(
    synth_on_pool: Synth,
    folder: Path,
    canary: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
) -> None:
    monkeypatch.chdir(folder)
    ended = synth_on_pool(*arguments)
    assert ended.code == 0, ended.stderr
    assert not canary.exists()


def test_trust_shows_what_it_imports_and_then_trains(
    folder: Path, canary: Path, text: Path
) -> None:
    code, stderr = run(folder, text, "--trust")
    assert code == 0, stderr
    assert stderr.splitlines()[0] == f"importing {folder}/canary.py:layers, as the plan names it"
    assert canary.exists()


def test_a_model_on_the_command_line_replaces_the_one_that_the_plan_names(
    synth_on_pool: Synth, folder: Path, canary: Path, text: Path
) -> None:
    options = ("--device", "cpu", "--steps", 3, "--model", f"{folder / 'model.py'}:layers")
    ended = synth_on_pool("run", folder / "plan.json", "--data", text, *options)
    assert ended.code == 0, ended.stderr
    assert not canary.exists()


def test_with_a_model_trust_is_for_the_other_code_that_a_plan_names() -> None:
    mine, policy = "mine.py:layers", "policies.py:products"
    workload = Workload(model="theirs.py:layers", micro_batch_size=2, sequence_length=16)
    assert read_model(workload, mine, True, [policy]) == mine
    assert read_model(workload.replace(inputs="batches.py:make"), mine, True) == mine
    with pytest.raises(SynthError, match="give one of them"):
        read_model(workload, mine, True, ["ops"])


def test_a_model_and_trust_together_are_refused(synth: Synth, folder: Path, text: Path) -> None:
    both = ("--trust", "--model", "mine.py:layers")
    ended = synth("run", folder / "plan.json", "--data", text, "--device", "cpu", *both)
    assert ended.code == 2
    assert "give one of them" in ended.stderr
