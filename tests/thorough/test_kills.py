"""Training killed at random moments and resumed: the results of an undisturbed run."""

import json
import random
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cli.worker_processes import workers_of
from tests.thorough.examples import Examples
from tests.thorough.processes import Started, send, started

pytestmark = pytest.mark.skipif(not Path("/proc").is_dir(), reason="processes are read from /proc")

STEPS = 120
# A rank that waits for one that is stopped gives up sooner than this, and so does the launcher.
LONGEST_END_S = 120
LEAVE_S = 20


def arguments(plan: Path, text: Path, saved: Path, run_file: Path) -> tuple[Any, ...]:
    training = ("run", plan, "--data", text, "--device", "cpu", "--steps", STEPS)
    rates = ("--schedule", "cosine", "--lr", "1e-2")
    saving = ("--checkpoint", saved, "--checkpoint-every", 7)
    return (*training, *rates, *saving, "--resume", "-o", run_file)


@dataclass(frozen=True)
class Numbers:
    """The end of a run: all losses, and the digest of every parameter and optimizer state."""

    losses: list[float]
    digests: dict[str, str]
    took_s: float = 0.0

    @classmethod
    def of(cls, saved: Path, run_file: Path, took_s: float = 0.0) -> "Numbers":
        tensors = json.loads((saved / f"step-{STEPS}" / "training.json").read_text())["tensors"]
        losses = json.loads(run_file.read_text())["losses"]
        return cls(losses, {name: tensor["sha256"] for name, tensor in tensors.items()}, took_s)


@pytest.fixture(scope="module")
def undisturbed(run_plan: Path, text: Path, tmp_path_factory: pytest.TempPathFactory) -> Numbers:
    folder = tmp_path_factory.mktemp("undisturbed")
    saved, run_file = folder / "saved", folder / "run.json"
    began = time.monotonic()
    with started(arguments(run_plan, text, saved, run_file), folder) as run:
        assert run.process.wait(timeout=300) == 0, run.stderr
    return Numbers.of(saved, run_file, time.monotonic() - began)


@pytest.mark.thorough(share=0.3)
def test_a_run_that_is_killed_and_goes_on_ends_with_the_same_numbers(
    run_plan: Path, text: Path, undisturbed: Numbers, examples: Examples, tmp_path: Path
) -> None:
    def check(draw: random.Random) -> None:
        folder = tmp_path / str(draw.getrandbits(64))
        folder.mkdir()
        saved, run_file = folder / "saved", folder / "run.json"
        command = arguments(run_plan, text, saved, run_file)
        told = []
        for _ in range(draw.choice((1, 1, 2, 3))):
            run_file.unlink(missing_ok=True)
            with started(command, folder) as run:
                told.append(harm(draw, run, undisturbed.took_s))
                code = run.process.wait(timeout=LONGEST_END_S)
                said = "\n".join(map(str, (*told, code, run.stderr)))
                assert run.left_after(LEAVE_S) == [], said
            assert code in (0, 1, 143, -signal.SIGKILL, -signal.SIGTERM), said
            assert "Traceback" not in run.stderr, said
            if code == 0:
                break
        else:
            run_file.unlink(missing_ok=True)
            with started(command, folder) as run:
                assert run.process.wait(timeout=LONGEST_END_S) == 0, (*told, run.stderr)
        first_step = json.loads(run_file.read_text())["first_step"]
        found = Numbers.of(saved, run_file)
        assert found.losses == undisturbed.losses[first_step:], told
        assert found.digests == undisturbed.digests, told

    examples.each(check)


def harm(draw: random.Random, run: Started, usual_s: float) -> str:
    """Signal a process at a random moment; return a description."""
    if draw.random() < 0.5:
        pause_s = draw.uniform(0, usual_s)
    else:
        while "step " not in run.stderr and run.process.poll() is None:
            time.sleep(0.02)
        pause_s = draw.uniform(0, usual_s / 3)
    victim, what = draw.randrange(4), draw.choice(("SIGKILL", "SIGKILL", "SIGTERM", "SIGSTOP"))
    stopped_s = draw.choice((draw.uniform(0, 2), draw.uniform(3, 9), None))
    time.sleep(pause_s)
    workers = workers_of(run.process.pid)
    if victim < len(workers):
        process, name = workers[victim], f"rank {victim}"
    else:
        process, name = run.process.pid, "the launcher"
        stopped_s = stopped_s or 1.0  # nobody but its user goes on with it
    send(process, signal.Signals[what])
    if what == "SIGSTOP" and stopped_s is not None:
        time.sleep(stopped_s)
        send(process, signal.SIGCONT)
    return f"{what} of {name} after {pause_s:.2f} s" + (
        f", for {stopped_s} s" if what == "SIGSTOP" else ""
    )
