"""Small runs of two ranks, in processes of their own."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from synth.profile.workload import Workload
from tests.cli.conftest import make_run_plan
from tests.cli.forked_command import ForkedCommand
from tests.cli.worker_processes import Process, end

# A model of a user: what a test adds stands behind it, such as another `Head`.
MODEL = """
from torch import nn
class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(8, 256)
    def forward(self, x, targets):
        return nn.functional.cross_entropy(self.out(x).flatten(0, 1), targets.flatten())
def layers():
    return [nn.Embedding(256, 8), Head()]
"""


def plan_of_own(model: str, folder: Path) -> Path:
    """Write a model as `model.py`; return a plan that runs each of its two layers on a rank."""
    path = folder / "model.py"
    path.write_text(model)
    workload = Workload(model=f"{path}:layers", micro_batch_size=2, sequence_length=16)
    return make_run_plan(workload, (1, 1), folder)


@contextmanager
def started(
    *arguments: object,
    launcher: Sequence[str] = (),
    temporary: Path | None = None,
    variables: Mapping[str, str] | None = None,
) -> Iterator[Process]:
    """A running `synth run` on CPUs; its remaining processes are killed at the end.

    Args:
        launcher: what begins the command in place of `synth run`.
        temporary: its folder of temporary files.
        variables: of its environment, beside those of this process.
    """
    loopback = "lo0" if sys.platform == "darwin" else "lo"
    environment = os.environ | {"GLOO_SOCKET_IFNAME": loopback} | dict(variables or {})
    if temporary is not None:
        environment["TMPDIR"] = str(temporary)
    words = [*map(str, arguments), "--device", "cpu"]
    process: Process
    if launcher:
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            [*launcher, *words], stdout=pipe, stderr=pipe, text=True, env=environment
        )
    else:
        process = ForkedCommand(["run", *words], env=environment)
    try:
        yield process
    finally:
        end(process)
