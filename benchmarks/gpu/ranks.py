"""Several ranks on one device, and NCCL with one rank."""

import copy
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import HashStore

from benchmarks.gpu.step import Where
from synth.families import generate
from synth.runtime.batch import Batch
from synth.runtime.execution.transport.in_process.ranks import InProcessGroup, run_ranks
from synth.runtime.pipeline import Pipeline
from synth.schedule.model import Schedule

_FAMILIES = ("1f1b", "zb-h1", "zb-v", "chimera", "weipipe", "zero3")


def threads_on_one_device(where: Where) -> dict[str, Any]:
    """Replay families on two ranks that are threads, against plain autograd on the same device."""
    found = {}
    for name in _FAMILIES[:: where.pick(3, 1)]:
        schedule = generate(name, 2, 4)
        stages = _stages(schedule.placement.num_stages, where)
        replay = partial(_replayed, schedule, stages, where)
        found[name] = max(run_ranks(2, replay, timeout_s=40.0))
    return {"largest_relative_difference": found}


def nccl_of_one(where: Where) -> dict[str, Any]:
    """Make a world of one rank, step twice, evaluate, close, and step in a new pipeline."""
    backend = "nccl" if where.device == "cuda" else "gloo"
    with world_of_one(backend):
        schedule = generate("1f1b", 1, 4)
        worst = [_replayed(schedule, _stages(1, where), where, None) for _ in range(2)]
    return {"backend": backend, "largest_relative_difference": max(worst)}


@contextmanager
def world_of_one(backend: str) -> Iterator[None]:
    """Be the only process of a world."""
    dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def processes_on_one_device(where: Where) -> dict[str, Any]:
    """Train on two processes that share the device, over gloo; losses against the CPU's."""
    with tempfile.TemporaryDirectory() as folder:
        text, plan = Path(folder) / "text.txt", Path(folder) / "plan.json"
        text.write_text("the quick brown fox jumps over the lazy dog. " * 500)
        _call(
            "solve", "gpt-bytes-cpu", "--ranks", "2", "--micro-batches", "4", "--placement",
            "linear", "--recompute", "none", "--time-limit", "3s", "-o", plan,
        )  # fmt: skip
        losses = {}
        for device in (where.device, "cpu"):
            made = Path(folder) / f"{device}.json"
            steps = str(where.pick(2, 10))
            _call("run", plan, "--data", text, "--steps", steps, "--device", device, "-o", made)
            losses[device] = _losses(made)
    pairs = zip(losses[where.device], losses["cpu"], strict=True)
    return {"losses": losses, "largest_difference": max(abs(a - b) for a, b in pairs)}


def _losses(path: Path) -> list[float]:
    found: list[float] = json.loads(path.read_text())["losses"]
    return found


def _call(*arguments: object) -> None:
    """Run a command of synth.

    Raises:
        RuntimeError: it failed; with what it said.
    """
    ended = subprocess.run(
        [sys.executable, "-m", "synth", *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    if ended.returncode:
        raise RuntimeError(f"synth {arguments[0]} ended with {ended.returncode}: {ended.stderr}")


def _replayed(
    schedule: Schedule, given: Sequence[nn.Module], where: Where, group: InProcessGroup | None
) -> float:
    """The largest relative difference of a rank's gradients from plain autograd's."""
    stages, true = copy.deepcopy(given), copy.deepcopy(given)
    rank = 0 if group is None else group.rank
    mine = sorted({stage for stage, _ in schedule.placement.held[rank]})
    pipeline = Pipeline(schedule, {n: [stages[n]] for n in mine}, group=group, loss=_loss)
    inputs, targets = _batch(schedule.num_micro_batches, where)
    pipeline.step(Batch(inputs, targets))
    for x, y in zip(inputs, targets, strict=True):
        for stage in true:
            x = stage(x)
        (_loss(x, y) / schedule.num_micro_batches).backward()
    worst = 0.0
    for number, module in pipeline.updated.items():
        pairs = zip(module.parameters(), true[number].parameters(), strict=False)
        for a, b in pairs:
            if a.grad is not None and b.grad is not None and a.shape == b.shape:
                difference = (a.grad - b.grad).abs().max() / b.grad.abs().max()
                worst = max(worst, float(difference))
    pipeline.close()
    return worst


def _stages(count: int, where: Where) -> list[nn.Module]:
    width = where.pick(16, 512)
    torch.manual_seed(1)
    made = [
        nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width)) for _ in range(count)
    ]
    return [stage.to(where.device) for stage in made]


def _batch(count: int, where: Where) -> tuple[list[Tensor], list[Tensor]]:
    shape = (count, where.pick(2, 256), where.pick(16, 512))
    draw = torch.Generator().manual_seed(2)
    x = torch.randn(shape, generator=draw).to(where.device)
    y = torch.randn(shape, generator=draw).to(where.device)
    return list(x), list(y)


def _loss(output: Tensor, target: Tensor) -> Tensor:
    return nn.functional.mse_loss(output, target)
