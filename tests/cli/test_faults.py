"""Failures of a run, caused on purpose: it ends or recovers with a clear message in seconds."""

import json
import os
import re
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from synth.cli.work.run import stopped_after
from synth.profile.workload import Workload
from tests.cli.conftest import TINY, Synth, make_run_plan
from tests.cli.small_runs import MODEL, plan_of_own, started
from tests.cli.worker_processes import Process, read_until, workers_of
from tests.sweep import sweep

TORCHRUN = [
    *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"),
    *("--max-restarts", "1", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"),
    *("--local-addr", "localhost", "-m", "synth", "run"),
]
WHERE = r"(in step \d+, at \w+|between steps \d+ and \d+)"
# The last where ranks tell each other what they need before a step.
ELSEWHERE = "in step|was stopped|cannot continue: rank 1 "


def stderr_after_kill(process: Process, worker: int) -> str:
    """Kill a worker once a step is made; the run ends with 1 soon after. Its messages.

    Without a watcher it would end after the time-out of 300 s. A busy machine, which also takes
    long to start a run, has more than 30 s.
    """
    began_at = time.monotonic()
    read_until(process, "step ")
    start_s = time.monotonic() - began_at
    os.kill(workers_of(process.pid)[worker], signal.SIGKILL)
    killed_at = time.monotonic()
    _, stderr = process.communicate(timeout=600)
    assert time.monotonic() - killed_at < max(30.0, 2 * start_s)
    assert process.returncode == 1
    return stderr


def is_running(process: int) -> bool:
    """True if the process exists and is not a zombie, which has no command line.

    It may end meanwhile.
    """
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes() != b""
    except OSError:
        return False


def losses_of(run_file: Path) -> tuple[int, list[float]]:
    found = json.loads(run_file.read_text())
    return found["first_step"], found["losses"]


def test_a_killed_rank_ends_the_others_within_seconds_naming_rank_and_op(
    run_plan: Path, text: Path, tmp_path: Path
) -> None:
    arguments = (run_plan, "--data", text, "--steps", 100000)
    with started(*arguments, temporary=tmp_path) as process:
        stderr = stderr_after_kill(process, 1)

    assert re.search(rf"rank 1 was killed by SIGKILL {WHERE}", stderr)
    place = r"(F|B|W|BW|STEP|RECV|SEND|SENT|the sum of the losses|call \d+ of its pipeline)"
    assert re.search(rf"rank 0 (failed in {place}|{ELSEWHERE})", stderr)
    assert "Traceback" not in stderr
    assert [path.name for path in tmp_path.iterdir() if "synth" in path.name] == []
    assert list(tmp_path.glob("torchelastic*")) == []


def test_a_rank_that_is_killed_in_weight_passing_ends_the_others_within_seconds(
    text: Path, tmp_path: Path
) -> None:
    workload = Workload(model="gpt", arguments=TINY, micro_batch_size=2, sequence_length=32)
    plan = make_run_plan(workload, (3, 3), tmp_path, "weipipe")
    with started(plan, "--data", text, "--steps", 100000) as process:
        stderr = stderr_after_kill(process, 1)

    assert re.search(rf"rank 1 was killed by SIGKILL {WHERE}", stderr)
    assert re.search(rf"rank 0 (failed in \w+|{ELSEWHERE})", stderr)
    assert "Traceback" not in stderr


@pytest.mark.slow
def test_a_killed_rank_of_one_pipeline_ends_those_side_by_side_with_it(
    run_plan: Path, text: Path, tmp_path: Path
) -> None:
    arguments = (run_plan, "--data", text, "--steps", 100000, "--data-parallel", 2)
    with started(*arguments, temporary=tmp_path) as process:
        stderr = stderr_after_kill(process, 3)

    assert re.search(rf"rank 1 of pipeline 1 was killed by SIGKILL {WHERE}", stderr)
    assert re.search(r"(pipeline 0: rank|rank) 0", stderr)
    assert "Traceback" not in stderr


@pytest.mark.slow  # it waits
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="states of processes are read from /proc")
def test_a_rank_that_was_stopped_ends_the_run_long_before_the_time_out(
    run_plan: Path, text: Path, tmp_path: Path
) -> None:
    saved = ("--checkpoint", tmp_path / "saved", "--checkpoint-every", 1)
    with started(run_plan, "--data", text, "--steps", 100000, *saved) as process:
        read_until(process, "checkpoint of step")
        os.kill(workers_of(process.pid)[1], signal.SIGSTOP)
        stopped_at = time.monotonic()
        _, stderr = process.communicate(timeout=600)

    assert time.monotonic() - stopped_at < 150  # without a watcher: after the time-out of 300 s
    assert process.returncode == 1
    assert re.search(rf"rank 1 had been stopped for 5 s and was ended {WHERE}", stderr)
    entries = (tmp_path / "saved").glob("step-*")
    complete = [path for path in entries if path.suffix != ".partial"]
    assert complete
    assert all((path / "training.json").exists() for path in complete)


@pytest.mark.slow  # it waits
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="states of processes are read from /proc")
@pytest.mark.parametrize("command", [(), TORCHRUN], ids=["own launcher", "torchrun"])
def test_a_rank_that_is_stopped_before_it_has_joined_is_named_and_ended(
    command: Sequence[str], run_plan: Path, text: Path
) -> None:
    marker = b"synth" if command else None
    with started(run_plan, "--data", text, "--steps", 2, launcher=command) as process:
        while len(workers := workers_of(process.pid, marker)) < 2 and process.poll() is None:
            time.sleep(0.01)
        os.kill(workers[1], signal.SIGSTOP)
        stopped_at = time.monotonic()
        _, stderr = process.communicate(timeout=600)

    assert time.monotonic() - stopped_at < 250  # without a watcher: after the time-out of 300 s
    assert "rank 1 had been stopped for 5 s; the others wait for it: ending it" in stderr
    if not command:
        assert process.returncode == 1
        assert "rank 1 had been stopped for 5 s and was ended before its first step" in stderr
        assert "Traceback" not in stderr
    else:
        assert process.returncode == 0, stderr  # torchrun starts the ranks again


def test_what_one_rank_refuses_is_one_message_and_no_traceback_of_the_others(
    run_plan: Path, tmp_path: Path
) -> None:
    ids = tmp_path / "ids.npy"
    np.save(ids, np.full(500, 1000))  # only the rank with the embedding knows that it has 256
    with started(run_plan, "--data", ids, "--steps", 3) as process:
        _, stderr = process.communicate(timeout=600)
    assert process.returncode == 2
    assert "token id 1000; the model's vocabulary is 0 to 255" in stderr
    assert "Traceback" not in stderr


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="processes are read from /proc")
def test_ranks_do_not_outlive_a_launcher_that_was_killed(
    run_plan: Path, text: Path, tmp_path: Path
) -> None:
    arguments = (run_plan, "--data", text, "--steps", 1000000)
    with started(*arguments, temporary=tmp_path) as process:  # what it leaves there stays
        read_until(process, "step ")
        workers = workers_of(process.pid)
        process.kill()
        process.communicate(timeout=600)  # ends when nobody holds its pipes any more
    assert len(workers) == 2
    assert not any(map(is_running, workers))


ENDLESS = f"""{MODEL}
import itertools
Once = Head
class Head(Once):
    calls = 0
    def forward(self, x, targets):
        self.calls += 1
        if self.calls == 800:  # many steps, so that it is known how long they take
            for _ in itertools.count():
                pass
        return super().forward(x, targets)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="ranks of one machine are told by /proc")
def test_a_rank_in_an_endless_loop_is_named_and_ended_long_before_the_time_out(
    text: Path, tmp_path: Path
) -> None:
    plan = plan_of_own(ENDLESS, tmp_path)
    limits = ("--patience", 8, "--trust")
    with started(plan, "--data", text, "--steps", 100000, *limits) as process:
        _, stderr = process.communicate(timeout=600)
    assert process.returncode == 1
    assert re.search(r"rank 1 had stood still for \d+ s, with all it needs there, and was", stderr)
    assert re.search(r"rank 1 .* and was ended in step \d+, at F1\.\d", stderr)
    assert "Traceback" not in stderr


RESUMED = ("--steps", 80, "--schedule", "cosine")  # so many that a rank is killed before the end


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a run that nothing happens to, which the first test that needs it makes."""
    return tmp_path_factory.mktemp("undisturbed") / "run.json"


@pytest.mark.slow
@pytest.mark.parametrize("launcher", [(), TORCHRUN], ids=["synth run", "torchrun"])
def test_ranks_started_again_go_on_from_the_checkpoint_with_the_same_losses(
    synth_on_pool: Synth,
    run_plan: Path,
    text: Path,
    tmp_path: Path,
    launcher: Sequence[str],
    undisturbed: Path,
) -> None:
    arguments = (run_plan, "--data", text, *RESUMED)
    if not undisturbed.exists():
        ended = synth_on_pool("run", *arguments, "-o", undisturbed, "--device", "cpu")
        assert ended.code == 0, ended.stderr
    saved = ("--checkpoint", tmp_path / "saved", "--checkpoint-every", 5)
    again = ("--restarts", 1) if not launcher else ()
    marker = b"synth" if launcher else None
    options = (*saved, *again, "-o", tmp_path / "run.json")
    with started(*arguments, *options, launcher=launcher) as process:
        read_until(process, "checkpoint of step")
        os.kill(workers_of(process.pid, marker)[1], signal.SIGKILL)
        _, stderr = process.communicate(timeout=600)
    assert process.returncode == 0, stderr
    assert "resumed from" in stderr
    if not launcher:
        assert re.search(
            rf"restart 1 of 1:.*rank 1 left no report: killed, .* {WHERE}", stderr, re.S
        )

    first_step, losses = losses_of(tmp_path / "run.json")
    assert first_step >= 5
    assert losses == losses_of(undisturbed)[1][first_step:]


@pytest.mark.slow
@pytest.mark.parametrize("launcher", [(), TORCHRUN], ids=["synth run", "torchrun"])
def test_sigterm_ends_a_run_behind_its_step_with_a_checkpoint_to_go_on_from(
    synth_on_pool: Synth, run_plan: Path, text: Path, tmp_path: Path, launcher: Sequence[str]
) -> None:
    arguments = (run_plan, "--data", text)
    saved = ("--checkpoint", tmp_path / "saved", "--checkpoint-every", 10_000)
    many = ("--steps", 4000)  # so many that the signal is there before the last one
    options = (*many, *saved, "-o", tmp_path / "first.json")
    with started(*arguments, *options, launcher=launcher) as process:
        read_until(process, "step ")
        process.terminate()
        _, stderr = process.communicate(timeout=600)
    said = re.search(r"stopped by SIGTERM: (\d+) steps? (?:is|are) done and saved", stderr)
    assert said, stderr
    assert process.returncode == (1 if launcher else 143)
    assert "Traceback" not in stderr or launcher  # whose own one it is
    _, before = losses_of(tmp_path / "first.json")
    assert 1 < len(before) == int(said[1]) < 4000

    more = ("--steps", len(before) + 10, "--device", "cpu")
    undisturbed = tmp_path / "undisturbed.json"
    for again in ((*saved, "--resume", "-o", tmp_path / "on.json"), ("-o", undisturbed)):
        ended = synth_on_pool("run", *arguments, *more, *again)
        assert ended.code == 0, ended.stderr
    first_step, after = losses_of(tmp_path / "on.json")
    assert first_step == len(before)
    assert before + after == losses_of(undisturbed)[1]


def test_sigterm_without_checkpoints_ends_a_run_at_once_telling_where_ranks_were(
    run_plan: Path, text: Path
) -> None:
    with started(run_plan, "--data", text, "--steps", 100000) as process:
        read_until(process, "step ")
        process.terminate()
        _, stderr = process.communicate(timeout=600)
    assert re.search(rf"stopped by SIGTERM: rank 0 .*{WHERE}", stderr)
    assert process.returncode == 143


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="processes are read from /proc")
@pytest.mark.parametrize("pause_s", sweep([0.0, 0.5, 0.2], daily=2))
def test_ctrl_c_while_ranks_import_is_told_in_one_line(
    run_plan: Path, text: Path, pause_s: float
) -> None:
    with started(run_plan, "--data", text, "--steps", 100000) as process:
        while len(workers_of(process.pid)) < 2 and process.poll() is None:
            time.sleep(0.01)
        time.sleep(pause_s)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=600)
    assert process.returncode == 130
    assert stderr.splitlines()[-1].startswith("error: stopped by SIGINT: rank 0 ")
    assert "Traceback" not in stderr
    assert "death signal" not in stderr  # torch's own words


def test_what_sigterm_ended_is_told_with_its_own_exit_code() -> None:
    assert "SIGTERM: 1 step is done and saved;" in str(stopped_after(1))
    assert "SIGTERM: 2 steps are done and saved;" in str(stopped_after(2))
    assert stopped_after(1).exit_code == 128 + signal.SIGTERM


NOT_A_NUMBER = f"""{MODEL}
import torch
Good = Head
class Head(Good):
    calls = 0
    def forward(self, x, targets):
        self.calls += torch.is_grad_enabled()
        loss = super().forward(x, targets)
        return loss if self.calls < 40 else loss * float("nan")
"""


def test_a_loss_that_is_no_number_ends_the_run_and_is_not_tried_again(
    text: Path, tmp_path: Path
) -> None:
    plan = plan_of_own(NOT_A_NUMBER, tmp_path)
    saved = ("--checkpoint", tmp_path / "saved", "--checkpoint-every", 3, "--restarts", 1)
    with started(plan, "--data", text, "--steps", 100, "--trust", *saved) as process:
        _, stderr = process.communicate(timeout=600)
    assert process.returncode == 1
    assert "the loss of step 9 is nan; lower --lr, or clip with --clip" in stderr
    assert "resumed from" not in stderr
    assert (tmp_path / "saved" / "step-9" / "training.json").exists()
