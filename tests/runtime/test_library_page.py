"""The library's page shows programs; here they run as shown."""

import os
import re
import subprocess
import sys
from pathlib import Path

from synth.schedule.file import Plan

LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
PAGE = Path(__file__).parents[2] / "docs" / "library.md"


def programs() -> list[str]:
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def test_the_pages_solver_writes_a_plan_that_is_true(tmp_path: Path) -> None:
    _, solving = programs()
    (tmp_path / "solving.py").write_text(solving)
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
    training, _ = programs()
    (tmp_path / "train.py").write_text(training)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    ended = subprocess.run(
        [*command, "--local-addr", "localhost", "--nproc-per-node", "2", "train.py"],
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": LOOPBACK},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert ended.returncode == 0, ended.stderr
    losses = [float(value) for value in re.findall(r"loss ([\d.]+)", ended.stdout)]
    assert len(losses) == 20
    assert losses[-1] < 0.7 * losses[0]
