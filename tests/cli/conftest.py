"""Running commands as a user would, in this process."""

import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

from synth.cli import run_command_line
from synth.cli.progress import interrupt
from synth.costs.partition_costs import partition_costs
from synth.families import generate
from synth.op_kinds import OpKind
from synth.profile import Profile
from synth.profile.links import Link, Links
from synth.profile.workload import Workload
from synth.profiles import find
from synth.schedule.files.plan_file import Plan
from synth.schedule.lowering.lower import lower
from synth.schedule.rank_memory import peak_bytes
from tests.cli.pooled_ranks import PooledLaunch
from tests.last_words import last_of_each
from tests.runtime.gloo_pool import GlooPool

NAME = "zb-1.5b-p8-m24"

# Stages of six layers; 33 GB is enough for one micro-batch at 13.4 GB, not for all four.
SMALL_SOLVE = (
    *("solve", NAME, "--ranks", "4", "--micro-batches", "4", "--time-limit", "5s"),
    *("--placement", "linear", "--partition", "even", "--recompute", "none"),
)

TINY = {"vocabulary_size": 256, "width": 32, "num_blocks": 4, "num_heads": 2, "context_length": 32}


@dataclass
class Ended:
    """The exit code and the output of a command."""

    code: int
    stdout: str
    stderr: str


Synth = Callable[..., Ended]


def wait_for_work(code: object) -> None:
    for thread in threading.enumerate():
        if thread.name == interrupt._THREAD:
            thread.join(timeout=120)


@pytest.fixture
def synth(synth_as_given: Synth) -> Synth:
    """Run `synth` with arguments, of which later options replace the same ones before."""

    def run(*arguments: str | Path) -> Ended:
        return synth_as_given(*last_of_each([*map(str, arguments)]))

    return run


@pytest.fixture
def synth_as_given(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Synth:
    """Run `synth` with arguments; a traceback is a failure of the test.

    Work that the command leaves alone, as it would not end in time, is waited for: the command ends
    its process then, which is that of the tests here.
    """
    monkeypatch.setattr("synth.cli._leave_alone", wait_for_work)

    def run(*arguments: str | Path) -> Ended:
        monkeypatch.setattr(sys, "argv", ["synth", *map(str, arguments)])
        capsys.readouterr()
        previous = signal.getsignal(signal.SIGINT)
        try:
            with pytest.raises(SystemExit) as ended:
                run_command_line()
        finally:
            signal.signal(signal.SIGINT, previous)
        written = capsys.readouterr()
        code = ended.value.code
        assert isinstance(code, int) or code is None
        return Ended(code or 0, written.out, written.err)

    return run


@pytest.fixture
def synth_on_pool(synth: Synth, pool: GlooPool, monkeypatch: pytest.MonkeyPatch) -> Synth:
    """As `synth`, but the ranks of a run are processes that are there already."""
    if find_spec("torch") is not None:
        monkeypatch.setattr("synth.runtime.training.launch.launch", PooledLaunch(pool))
    return synth


@pytest.fixture(scope="session")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small plan, made by a family and not by the solver."""
    profile = Profile.load(find(NAME))
    costs, schedule = partition_costs(profile, [6] * 4), generate("zb-h1", 4, 8)
    caps = tuple(peak + 1000 for peak in peak_bytes(lower(schedule, costs)))
    plan = Plan.of(profile, [6] * 4, schedule, caps_bytes=caps)
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    plan.save(path)
    return path


@pytest.fixture(scope="session")
def run_plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ZB-H1 of a tiny GPT on two ranks."""
    workload = Workload(model="gpt", arguments=TINY, micro_batch_size=2, sequence_length=32)
    return make_run_plan(workload, (3, 3), tmp_path_factory.mktemp("run"))


def make_run_plan(
    workload: Workload, sizes: tuple[int, int], folder: Path, schedule: str = "zb-h1"
) -> Path:
    """A schedule of four micro-batches on two ranks, for a model that can be run."""
    path = folder / "plan.json"
    Plan.of(make_run_profile(workload), sizes, generate(schedule, 2, 4)).save(path)
    return path


def make_run_profile(workload: Workload) -> Profile:
    """A profile of a model that can be run."""
    torch = pytest.importorskip("torch")
    from synth.runtime.profiling.profile_model import profile_model

    links = Links(default=Link(latency_us=50.0))
    profile = profile_model(workload, torch.device("cpu"), warmup=1, iterations=3, links=links)
    # However busy this machine is: no warning of it beside what a test looks for.
    return profile.replace(provenance=profile.provenance.replace(conditions=None))


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Very learnable data."""
    path = tmp_path_factory.mktemp("data") / "text.txt"
    path.write_text("the quick brown fox jumps over the lazy dog. " * 200)
    return path


def of_an_earlier_synth(plan: Plan) -> Plan:
    """The plan with backwards that take 5 MB more, as where a boundary is counted for longer."""
    stages = [
        stage.replace(
            rise_bytes={
                **stage.rise_bytes,
                **{kind: stage.rise_bytes[kind] + 5_000_000 for kind in (OpKind.B, OpKind.BW)},
            }
        )
        for stage in plan.costs.stages
    ]
    costs = plan.costs.replace(stages=tuple(stages))
    peaks = peak_bytes(lower(plan.schedule(), costs))
    return plan.replace(costs=costs, claim=plan.claim.replace(peak_bytes=peaks))
