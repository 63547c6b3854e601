"""Ways to reduce gradients over two pipelines of two ranks, in turns in the same processes.

    python -m benchmarks.data_parallel [--rounds 15]

`data_parallel`   Pipeline(data_parallel=…): from each stage's last backward, small ones together
`ddp`             stages wrapped in DistributedDataParallel
`after the step`  one all-reduce per parameter once `step` has returned

Losses and gradients are compared first. Times are of the slowest rank, medians of all rounds.
"""

import argparse
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import FileStore
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from synth.families import generate
from synth.runtime.pipeline import Pipeline

_PIPELINES, _RANKS, _MICRO_BATCHES = 2, 2, 8
_KINDS = ("data_parallel", "ddp", "after the step")
_SIZES = {"many small parameters": (24, 64), "few large parameters": (2, 768)}

Step = Callable[[], None]


def main() -> None:
    """Print a table for each size of stage."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        for size in _SIZES:
            processes = [
                context.Process(
                    target=_serve, args=(rank, f"{folder}/{size}", size, rounds, answers)
                )
                for rank in range(_PIPELINES * _RANKS)
            ]
            for process in processes:
                process.start()
            found = [answers.get(timeout=600) for _ in processes]
            for process in processes:
                process.join()
            _print(size, found)


def _print(size: str, found: list[dict[str, list[float]]]) -> None:
    slowest = {
        kind: [max(s) for s in zip(*(f[kind] for f in found), strict=True)] for kind in _KINDS
    }
    medians = {kind: statistics.median(seconds) for kind, seconds in slowest.items()}
    print(f"{size:24}{'step, ms':>10}{'data_parallel / this':>22}")
    for kind, seconds in medians.items():
        print(f"  {kind:22}{1e3 * seconds:10.2f}{medians['data_parallel'] / seconds:22.2f}")


def _serve(rank: int, store: str, size: str, rounds: int, answers: Any) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"
    torch.set_num_threads(1)
    count = _PIPELINES * _RANKS
    dist.init_process_group(
        "gloo", rank=rank, world_size=count, store=FileStore(store, count),
        timeout=timedelta(seconds=300),
    )  # fmt: skip
    mesh = init_device_mesh("cpu", (_PIPELINES, _RANKS), mesh_dim_names=("dp", "pp"))
    made = {kind: _make(kind, mesh, *_SIZES[size]) for kind in _KINDS}
    for step, _ in made.values():
        step()
    first, *others = [[p.grad for p in parameters] for _, parameters in made.values()]
    for other in others:
        for mine, theirs in zip(first, other, strict=True):
            torch.testing.assert_close(mine, theirs)
    seconds: dict[str, list[float]] = {kind: [] for kind in _KINDS}
    for _ in range(rounds):
        for kind, (step, parameters) in made.items():
            for parameter in parameters:
                assert parameter.grad is not None
                parameter.grad.zero_()
            dist.barrier()
            start = time.perf_counter()
            step()
            seconds[kind].append(time.perf_counter() - start)
    answers.put(seconds)
    dist.barrier()
    dist.destroy_process_group()


def _make(kind: str, mesh: DeviceMesh, num_layers: int, width: int) -> tuple[Step, list[Tensor]]:
    """A training step of this kind, and the parameters whose gradients it leaves reduced."""
    torch.manual_seed(mesh["pp"].get_local_rank())
    layers = [
        nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width)) for _ in range(num_layers)
    ]
    stage: nn.Module = nn.Sequential(*layers)
    group = mesh["dp"].get_group()
    if kind == "ddp":
        stage = DistributedDataParallel(stage, process_group=group)
    pipeline = Pipeline(
        generate("zb-h1", num_ranks=_RANKS, num_micro_batches=_MICRO_BATCHES),
        stage,
        group=mesh["pp"],
        loss=nn.functional.mse_loss,
        data_parallel=mesh["dp"] if kind == "data_parallel" else None,
    )
    generator = torch.Generator().manual_seed(mesh["dp"].get_local_rank())
    x = torch.randn(8 * _MICRO_BATCHES, width, generator=generator)
    parameters: list[Tensor] = list(stage.parameters())

    def step() -> None:
        pipeline.step(pipeline.split(x, targets=torch.zeros_like(x)))
        if kind == "after the step":
            for parameter in parameters:
                assert parameter.grad is not None
                dist.all_reduce(parameter.grad.div_(_PIPELINES), group=group)

    return step, parameters


if __name__ == "__main__":
    main()
