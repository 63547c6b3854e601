"""Ways to reduce gradients over two pipelines of two ranks, in turns in the same processes.

    python -m benchmarks.data_parallel --json benchmarks/results/data-parallel.json

`data_parallel`            Pipeline(data_parallel=…): from each stage's last backward, small ones
                           together
`DistributedDataParallel`  stages wrapped in it
`after the step`           one all-reduce per parameter once `step` has returned

Losses and gradients are compared first. Times are of the slowest rank, medians of all rounds.
"""

import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import FileStore
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from benchmarks.data_parallel_table import BASE, FORMAT, Row, table
from benchmarks.results_file import Run, parse_without_seeds, parser_of, report_rows
from synth.families import generate
from synth.runtime.pipeline import Pipeline

_PIPELINES, _RANKS, _MICRO_BATCHES = 2, 2, 8
_WRAPPED, _AFTER = "DistributedDataParallel", "after the step"
_KINDS = (BASE, _WRAPPED, _AFTER)
# Layers of a stage, and their width: many small parameters, few large ones.
_SIZES = ((24, 64), (2, 768))

Step = Callable[[], None]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print and save a row for each size of stage and way, then the table."""
    parser = parser_of(__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    asked = parse_without_seeds(parser, arguments)
    about = (
        f"a step of {_PIPELINES} pipelines of {_RANKS} ranks, ZB-H1, {_MICRO_BATCHES} "
        f"micro-batches, gloo, {asked.rounds} rounds."
    )
    request = Run("data-parallel", about, 1, 0, None)
    rows = (row for size in _SIZES for row in _rows(size, _measured(size, asked.rounds)))
    report_rows(rows, asked.json, FORMAT, request, table)
    return 0


def _measured(size: tuple[int, int], rounds: int) -> list[dict[str, list[float]]]:
    """The seconds of each way in each round, of all ranks."""
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        processes = [
            context.Process(target=_serve, args=(rank, f"{folder}/store", size, rounds, answers))
            for rank in range(_PIPELINES * _RANKS)
        ]
        for process in processes:
            process.start()
        found = [answers.get(timeout=600) for _ in processes]
        for process in processes:
            process.join()
    return found


def _rows(size: tuple[int, int], found: Sequence[Mapping[str, Sequence[float]]]) -> Iterator[Row]:
    for kind in _KINDS:
        slowest = [max(each) for each in zip(*(of_rank[kind] for of_rank in found), strict=True)]
        yield Row(*size, kind, 1e3 * statistics.median(slowest))


def _serve(rank: int, store: str, size: tuple[int, int], rounds: int, answers: Any) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"
    torch.set_num_threads(1)
    count = _PIPELINES * _RANKS
    dist.init_process_group(
        "gloo", rank=rank, world_size=count, store=FileStore(store, count),
        timeout=timedelta(seconds=300),
    )  # fmt: skip
    mesh = init_device_mesh("cpu", (_PIPELINES, _RANKS), mesh_dim_names=("dp", "pp"))
    made = {kind: _make(kind, mesh, *size) for kind in _KINDS}
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
    if kind == _WRAPPED:
        stage = DistributedDataParallel(stage, process_group=group)
    pipeline = Pipeline(
        generate("zb-h1", num_ranks=_RANKS, num_micro_batches=_MICRO_BATCHES),
        stage,
        group=mesh["pp"],
        loss=nn.functional.mse_loss,
        data_parallel=mesh["dp"] if kind == BASE else None,
    )
    generator = torch.Generator().manual_seed(mesh["dp"].get_local_rank())
    x = torch.randn(8 * _MICRO_BATCHES, width, generator=generator)
    parameters: list[Tensor] = list(stage.parameters())

    def step() -> None:
        pipeline.step(pipeline.split(x, targets=torch.zeros_like(x)))
        if kind == _AFTER:
            for parameter in parameters:
                assert parameter.grad is not None
                dist.all_reduce(parameter.grad.div_(_PIPELINES), group=group)

    return step, parameters


if __name__ == "__main__":
    sys.exit(main())
