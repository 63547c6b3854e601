"""Measuring one case on one rank: both runtimes in turn, round by round, with the same meters."""

import gc
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from benchmarks.executor.case import Case
from benchmarks.executor.ours import Ours
from benchmarks.executor.plain import Plain
from benchmarks.executor.sample import Sample
from benchmarks.executor.stages import WholeBatch, build_batch
from benchmarks.executor.theirs import Theirs
from synth.runtime.profiling.meter import Measurement, measure

_WARM_UP_ROUNDS = 3
_LEAST_ROUNDS = 3


class Runtime(Protocol):
    """One rank of a pipeline."""

    def step(self) -> Tensor | None:
        """One mini-batch; the mean loss on the rank with the last stage."""
        ...

    def parameters(self) -> dict[int, list[nn.Parameter]]:
        """By stage."""
        ...


Maker = Callable[[Case, int, WholeBatch], Runtime]

RUNTIMES: Mapping[str, Maker] = {
    "ours": Ours,
    "pytorch": Theirs,
    "native": partial(Theirs, native=True),
    "plain": Plain,
}


def measure_case(
    case: Case, rank: int, names: list[str], rounds: int, seconds: float
) -> dict[str, Sample]:
    """Build the runtimes, compare their answers, measure their bytes, then time them in turn.

    There are as many rounds as requested, or as fit into the seconds (at least three). Peak bytes
    are those above the parameters and their gradients: the bytes left over from the first step
    (such as receive buffers) plus the rise during the second one.
    """
    batch = build_batch(case)
    gc.collect()  # garbage of an earlier case must not be freed inside a window
    runtimes: dict[str, Runtime] = {}
    samples = {name: Sample() for name in names}
    answers: dict[str, tuple[Tensor | None, list[Tensor]]] = {}
    for name in names:
        runtime, first = _first_step(RUNTIMES[name], case, rank, batch)
        left_bytes = first.net_bytes - _given_bytes(runtime)
        _zero(runtime)
        gc.collect()
        dist.barrier()
        with measure(torch.device(case.device), after=first) as second:
            loss = runtime.step()
        samples[name].peak_bytes = left_bytes + second.peak_bytes
        answers[name] = (loss, [g.clone() for g in _gradients(runtime)])
        runtimes[name] = runtime
    for name in names[1:]:
        if name != "plain":  # which computes as much, of other numbers
            samples[name].difference = _difference(answers[names[0]], answers[name])
    for _ in range(_WARM_UP_ROUNDS):
        start = time.perf_counter()
        for name in names:
            _time_step(runtimes[name])
    for round_ in range(_fitting(rounds, seconds, time.perf_counter() - start)):
        for turn in range(len(names)):
            name = names[(turn + round_) % len(names)]
            wall_s, cpu_s = _time_step(runtimes[name])
            samples[name].wall_s.append(wall_s)
            samples[name].cpu_s.append(cpu_s)
    return samples


def _fitting(rounds: int, seconds: float, round_s: float) -> int:
    """The number of rounds to take; the same on all ranks."""
    found = torch.tensor(int(min(rounds, seconds / round_s)))
    dist.broadcast(found, 0)
    return max(_LEAST_ROUNDS, int(found))


def _first_step(
    make: Maker, case: Case, rank: int, batch: WholeBatch
) -> tuple[Runtime, Measurement]:
    """A runtime after its first step, and the bytes that it has taken."""
    with measure(torch.device(case.device)) as found:
        runtime = make(case, rank, batch)
        runtime.step()
        gc.collect()
    return runtime, found


def _given_bytes(runtime: Runtime) -> int:
    """The bytes of parameters and their gradients."""
    given = [t for p in _parameters(runtime) for t in (p, p.grad)]
    return sum(t.numel() * t.element_size() for t in given if t is not None)


def _parameters(runtime: Runtime) -> list[nn.Parameter]:
    return [p for _, mine in sorted(runtime.parameters().items()) for p in mine]


def _gradients(runtime: Runtime) -> list[Tensor]:
    return [p.grad for p in _parameters(runtime) if p.grad is not None]


def _zero(runtime: Runtime) -> None:
    for gradient in _gradients(runtime):
        gradient.zero_()


def _time_step(runtime: Runtime) -> tuple[float, float]:
    """Wall and processor seconds of one step; the ranks start it together."""
    _zero(runtime)
    return time_of(runtime.step)


def time_of(step: Callable[[], object]) -> tuple[float, float]:
    """Wall and processor seconds of a call that all ranks start together.

    The wall's include its kernels; the processor's do not include the wait for them, which spins.
    """
    _settle()
    dist.barrier()
    wall, cpu = time.perf_counter(), time.process_time()
    step()
    cpu_s = time.process_time() - cpu
    _settle()
    return time.perf_counter() - wall, cpu_s


def _settle() -> None:
    """Wait for the kernels of a device, if one is in use."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _difference(
    ours: tuple[Tensor | None, list[Tensor]], theirs: tuple[Tensor | None, list[Tensor]]
) -> float:
    """The largest relative difference between two runtimes' losses and gradients."""
    pairs = list(zip(ours[1], theirs[1], strict=True))
    if ours[0] is not None and theirs[0] is not None:
        pairs.append((ours[0], theirs[0]))
    return max(float((a - b).norm() / b.norm().clamp_min(1e-30)) for a, b in pairs)
