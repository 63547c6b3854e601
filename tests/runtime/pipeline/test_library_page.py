"""The pages of the library and of weights show programs; here they run as shown."""

import io
import os
import re
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import pytest
import torch
from torch import nn

from synth.schedule.files.plan_file import Plan
from tests.runtime.gloo_pool import GlooPool

LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
DOCS = Path(__file__).parents[3] / "docs"
LIBRARY, WEIGHTS = DOCS / "library.md", DOCS / "weights-and-versions.md"


def program_with(word: str, page: Path = LIBRARY) -> str:
    """The first program of a page in which a word stands."""
    programs = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    return next(program for program in programs if word in program)


def test_the_pages_solver_writes_a_plan_that_is_true(tmp_path: Path) -> None:
    (tmp_path / "solving.py").write_text(program_with("claim_of"))
    command = [sys.executable, "solving.py"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, ended.stderr
    assert len(ended.stdout.splitlines()) > 1
    plan = Plan.load(tmp_path / "plan.json")
    plan.check()
    assert plan.claim.objective == "period"
    assert plan.claim.period_us is not None
    assert 0 < plan.claim.lower_bound_us <= plan.claim.period_us


def test_the_pages_pipeline_learns_under_torchrun(tmp_path: Path) -> None:
    losses = run_under_torchrun(tmp_path, program_with("init_process_group"), 2)
    assert len(losses) == 20
    assert losses[-1] < 0.7 * losses[0]


def test_the_pages_weights_in_the_hosts_memory_are_those_of_one_process(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found: dict[str, Any] = {}
    exec(compile(program_with("shared_parameters", WEIGHTS), str(WEIGHTS), "exec"), found)
    assert "tensor" in capsys.readouterr().out
    torch.manual_seed(0)
    alone = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4)))
    inputs, targets = torch.randn(8, 8), torch.randn(8, 8)
    optimizer = torch.optim.AdamW(alone.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.mse_loss(alone(inputs), targets).backward()
        optimizer.step()
    for number, stage in enumerate(alone):
        torch.testing.assert_close(found["weights"][number], dict(stage.state_dict()))
        assert all(p.isnan().all() for p in found["stages"][number].parameters())


@pytest.mark.slow
def test_the_pages_data_parallel_loops_learn_the_same(pool: GlooPool) -> None:
    training = program_with("fully_shard")
    plain, *others = (
        losses_in("".join(pool.run(run_as_rank, 4, training, kind)))
        for kind in ("plain", "ddp", "fsdp")
    )
    assert len(plain) == 40  # 20 steps of two pipelines
    first, last = plain[0], plain[19]  # of one of them
    assert last < 0.7 * first
    for found in others:
        assert sorted(found) == pytest.approx(sorted(plain), abs=2e-4)


def run_as_rank(rank: int, size: int, program: str, *arguments: str) -> str:
    """Run a program in the group that is formed already, and return what it prints."""
    do_nothing = Mock()
    with (
        redirect_stdout(io.StringIO()) as printed,
        patch.object(torch.distributed, "init_process_group", do_nothing),
        patch.object(torch.distributed, "destroy_process_group", do_nothing),
        patch.object(sys, "argv", ["train.py", *arguments]),
    ):
        exec(compile(program, "train.py", "exec"), {})
    return printed.getvalue()


def run_under_torchrun(
    folder: Path, program: str, num_processes: int, *arguments: str
) -> list[float]:
    """Run a program, and find the losses that it prints."""
    (folder / "train.py").write_text(program)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    count = ("--nproc-per-node", str(num_processes))
    ended = subprocess.run(
        [*command, "--local-addr", "localhost", *count, "train.py", *arguments],
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": LOOPBACK},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert ended.returncode == 0, ended.stderr
    return losses_in(ended.stdout)


def losses_in(printed: str) -> list[float]:
    return [float(value) for value in re.findall(r"loss ([\d.]+)", printed)]
