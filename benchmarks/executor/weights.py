"""Passing weights beside passing activations: 1F1B, WeiPipe, ZeRO-3 and FSDP2, in turns.

    python -m benchmarks.executor.weights --json benchmarks/results/executor-weights.json
    python -m benchmarks.executor.weights --sizes long --ranks 4

All systems have the same stages and data, and the gradients are compared. `1f1b`, `weipipe` and
`zero3:1` are schedules of this runtime; `fsdp2` is torch's `fully_shard` around each stage, in a
plain loop over a rank's micro-batches. Their steps alternate. There is no optimizer step.

The columns are those of `weights_table.Row`.
"""

import gc
import statistics
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from benchmarks.executor.case import SIZES, Case
from benchmarks.executor.measure import time_of
from benchmarks.executor.processes import run_on_ranks
from benchmarks.executor.stages import WholeBatch, build_batch, build_stage, loss_of
from benchmarks.executor.weights_table import FORMAT, Row, table
from benchmarks.results_file import Run, parse_without_seeds, parser_of, report_rows
from synth.runtime.pipeline import Pipeline
from synth.runtime.profiling.meter import measure

SYSTEMS = ("1f1b", "weipipe", "zero3:1", "fsdp2")
_WARM_UP_ROUNDS = 3
_MOST_DIFFERENCE = 1e-4

# The place of a gradient: the stage, and the parameter in it.
Gradients = dict[tuple[int, int], Tensor]


class System(Protocol):
    """One rank of a system."""

    def step(self) -> None:
        """One mini-batch."""
        ...

    def zero(self) -> None:
        """Zero the gradients."""
        ...

    def gradients(self) -> Gradients:
        """The whole gradients that this rank has, or takes part in gathering."""
        ...


class Scheduled:
    """A schedule of this runtime."""

    def __init__(self, case: Case, rank: int, batch: WholeBatch) -> None:
        placement = case.make_schedule().placement
        held = sorted({stage for stage, _ in placement.held[rank]})
        self._modules = {stage: nn.Sequential(*build_stage(case, stage)) for stage in held}
        self._pipeline = Pipeline(case.make_schedule(), dict(self._modules), loss=loss_of)
        inputs, targets = batch
        self._inputs = (inputs,) if 0 in self._modules else ()
        self._targets = targets if placement.num_stages - 1 in self._modules else None

    def step(self) -> None:
        """One mini-batch."""
        self._pipeline.step(self._pipeline.split(*self._inputs, targets=self._targets))

    def zero(self) -> None:
        """Zero the gradients that this rank's optimizer would use."""
        _zero(p for module in self._pipeline.updated.values() for p in module.parameters())

    def gradients(self) -> Gradients:
        """Those of stages at home, or gathered from the shares of all homes."""
        shared, found = self._pipeline.shared_parameters, {}
        for stage in self._pipeline.updated:
            for number, parameter in enumerate(self._modules[stage].parameters()):
                if parameter in shared:
                    part: Any = shared[parameter].within(_gradient_of(shared[parameter].part))
                    found[stage, number] = part.full_tensor()
                else:
                    found[stage, number] = _gradient_of(parameter).clone()
        return found


class Fsdp2:
    """Torch's `fully_shard` around each stage; each rank runs its own micro-batches."""

    def __init__(self, case: Case, rank: int, batch: WholeBatch) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (case.num_ranks,))
        self._stages = [nn.Sequential(*build_stage(case, s)) for s in range(case.num_ranks)]
        for parameter in (p for stage in self._stages for p in stage.parameters()):
            parameter.grad = None
        for stage in self._stages:
            fully_shard(stage, mesh=mesh)
        count = case.num_micro_batches
        pairs = list(zip(*(part.chunk(count) for part in batch), strict=True))
        self._pairs = pairs[rank :: case.num_ranks]
        self._weight = case.num_ranks / count

    def step(self) -> None:
        """One mini-batch; gradients are the mean over ranks."""
        for x, target in self._pairs:
            y = x
            for stage in self._stages:
                y = stage(y)
            (loss_of(y, target) * self._weight).backward()

    def zero(self) -> None:
        """Zero the shards."""
        _zero(p for stage in self._stages for p in stage.parameters())

    def gradients(self) -> Gradients:
        """All of them, gathered."""
        return {
            (number, place): _gradient_of(parameter).full_tensor()  # type: ignore[attr-defined]
            for number, stage in enumerate(self._stages)
            for place, parameter in enumerate(stage.parameters())
        }


@dataclass
class Figures:
    """The measurements of a rank and a system; one entry per round."""

    wall_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    sent_bytes: list[int] = field(default_factory=list)
    peak_bytes: int = 0


def _zero(parameters: Any) -> None:
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad.zero_()


def _gradient_of(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


def compare(rank: int, cases: dict[str, Case], rounds: int) -> dict[str, Figures]:
    """Build all systems, compare their gradients, then let their steps alternate."""
    systems: dict[str, System] = {}
    figures = {name: Figures() for name in cases}
    wanted: Gradients = {}
    for name, case in cases.items():
        systems[name], figures[name].peak_bytes = _begin(name, case, rank)
        mine = systems[name].gradients()
        wanted = wanted or _of_all_ranks(mine)
        for place, gradient in mine.items():
            different = float((gradient - wanted[place]).norm() / wanted[place].norm())
            if not different < _MOST_DIFFERENCE:
                raise AssertionError(f"{name} differs by {different:.1e} at {place}")
    for round_ in range(_WARM_UP_ROUNDS + rounds):
        for turn in range(len(systems)):
            name = [*systems][(turn + round_) % len(systems)]
            systems[name].zero()
            before = _sent_bytes()
            wall_s, cpu_s = time_of(systems[name].step)
            dist.barrier()
            if round_ >= _WARM_UP_ROUNDS:
                figures[name].wall_s.append(wall_s)
                figures[name].cpu_s.append(cpu_s)
                figures[name].sent_bytes.append(_sent_bytes() - before)
    return figures


def _begin(name: str, case: Case, rank: int) -> tuple[System, int]:
    """A system after two steps, and its allocated bytes at most in the second."""
    make: Callable[[Case, int, WholeBatch], System] = Fsdp2 if name == "fsdp2" else Scheduled
    batch = build_batch(case)
    gc.collect()
    with measure(torch.device("cpu")) as first:
        system = make(case, rank, batch)
        system.step()
        gc.collect()
    system.zero()
    dist.barrier()
    with measure(torch.device("cpu"), after=first) as second:
        system.step()
    return system, first.net_bytes + second.peak_bytes


def _of_all_ranks(mine: Gradients) -> Gradients:
    """The gradients of all stages, each from a rank that has it."""
    everyones: list[Gradients] = [{} for _ in range(dist.get_world_size())]
    dist.all_gather_object(everyones, mine)
    return {place: gradient for theirs in everyones for place, gradient in theirs.items()}


def _sent_bytes() -> int:
    """The bytes that the loopback interface has sent so far; 0 where Linux does not tell."""
    with suppress(OSError):
        for line in Path("/proc/net/dev").read_text().splitlines():
            interface, _, fields = line.partition(":")
            if interface.strip() == "lo":
                return int(fields.split()[8])
    return 0


def _cases(size: str, num_ranks: int, count: int) -> dict[str, Case]:
    return {
        name: Case(
            "zero3:1" if name == "fsdp2" else name,
            num_ranks,
            count,
            "mlp",
            checkpoint=False,
            split=False,
            size=SIZES[size],
        )
        for name in SYSTEMS
    }


def _row(name: str, case: Case, ranks: Sequence[dict[str, Figures]]) -> Row:
    own, size = [rank[name] for rank in ranks], case.size
    wall = [max(each) for each in zip(*(f.wall_s for f in own), strict=True)]
    cpu = [sum(each) for each in zip(*(f.cpu_s for f in own), strict=True)]
    return Row(
        size.rows * size.length,
        size.width,
        case.num_ranks,
        name,
        1e3 * statistics.median(wall),
        1e3 * statistics.median(cpu),
        round(statistics.median(own[0].sent_bytes)),
        max(f.peak_bytes for f in own),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print and save a row for each size, number of ranks and system, then the table."""
    options = _parse(arguments)
    about = (
        f"{options.micro_batches} micro-batches of two MLP blocks per stage, float32, gloo, "
        f"{options.rounds} rounds."
    )
    request = Run("executor.weights", about, 1, 0, None)
    report_rows(_rows(options), options.json, FORMAT, request, table)
    return 0


def _rows(options: Namespace) -> Iterator[Row]:
    for size, num_ranks in product(options.sizes, options.ranks):
        cases = _cases(size, num_ranks, options.micro_batches)
        ranks = run_on_ranks(compare, num_ranks, cases, options.rounds)
        yield from (_row(name, case, ranks) for name, case in cases.items())


def _parse(arguments: Sequence[str] | None) -> Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["medium", "long"])
    parser.add_argument("--micro-batches", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=15)
    return parse_without_seeds(parser, arguments)


if __name__ == "__main__":
    sys.exit(main())
