"""The library's page shows a program; here it runs as shown."""

import os
import re
import subprocess
import sys
from pathlib import Path

LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
PAGE = Path(__file__).parents[2] / "docs" / "library.md"


def test_the_pages_program_learns_under_torchrun(tmp_path: Path) -> None:
    program = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert program is not None
    (tmp_path / "train.py").write_text(program[1])
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
