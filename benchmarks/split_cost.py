"""Cost of splitting the backward, in time and held bytes, beside autograd and PyTorch's split.

    python -m benchmarks.split_cost --threads 1 --compile --dtype float32 bfloat16 \\
        --json benchmarks/results/split-cost.json            # sizes that suit a CPU
    python -m benchmarks.split_cost --device cuda --dtype bfloat16 --width 4096 --time 4096

Each round runs all four variants once, so that drift of the machine's speed affects all alike; a
ratio is the median over rounds. With one thread on a CPU, time is processor time, for machines that
do other work too. Several threads, which wait for each other at every kernel, would measure that
work. Bytes are the allocator's own count of what is still held after the caller has dropped input,
output and the gradients passed on; `.grad`s were allocated before.
"""

import argparse
import gc
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.distributed.pipelining import _backward as pytorch
from torch.profiler import ProfilerActivity, profile

from benchmarks.results_file import Run, parse_without_seeds, report_rows
from benchmarks.split_cost_layers import Float8Mlp, RoutedExperts
from benchmarks.split_cost_table import FORMAT, Row, table
from synth.runtime.models.gpt import GptBlock, GptEmbedding
from synth.runtime.models.head import Head
from synth.runtime.models.llama import LlamaBlock
from synth.runtime.split import Recorder, enter


@dataclass(frozen=True)
class Case:
    """A layer, and how to make what it is called with; the first input is the stage's."""

    name: str
    layer: nn.Module
    inputs: Callable[[], tuple[Tensor, ...]]

    @cached_property
    def recorder(self) -> Recorder:
        """Has seen the layer's first F after the first round."""
        return Recorder(self.layer)


class Mlp(nn.Module):
    """Width to four times the width and back, added to its input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Same shape as x."""
        y: Tensor = x + self.down(F.gelu(self.up(x)))
        return y


class Experts(nn.Module):
    """A mixture of experts, held as three-dimensional parameters; each row goes to one expert."""

    def __init__(self, width: int, count: int) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(count, 2 * width, width) / width**0.5)
        self.down = nn.Parameter(torch.randn(count, width, 2 * width) / width**0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Same shape as x."""
        rows = x.flatten(0, -2)
        parts = rows.chunk(len(self.up))
        found = [
            F.linear(F.silu(F.linear(part, up)), down)
            for part, up, down in zip(parts, self.up, self.down, strict=True)
        ]
        return x + torch.cat(found).view(x.shape)


def make_cases(options: argparse.Namespace, dtype: str) -> list[Case]:
    """One case per kind of layer, at the sizes asked for."""
    width, heads, words = options.width, options.width // 64, options.vocabulary
    place: dict[str, Any] = {"device": options.device, "dtype": getattr(torch, dtype)}
    shape = (options.batch, options.time)

    def activations() -> tuple[Tensor, ...]:
        return (torch.randn(*shape, width, **place),)

    def rows() -> tuple[Tensor, ...]:
        # Of a sequence, the product is a view, which PyTorch's split cannot detach.
        return (activations()[0].flatten(0, 1),)

    def tokens() -> tuple[Tensor, ...]:
        return (torch.randint(0, words, shape, device=options.device),)

    hidden = -(-8 * width // (3 * 64)) * 64
    llama = LlamaBlock(width, heads, max(1, heads // 4), hidden, 10000.0, 1e-5)
    encoder = nn.TransformerEncoderLayer(
        width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True
    )
    cases = [
        Case("linear", nn.Linear(width, width), rows),
        Case("MLP", Mlp(width), activations),
        Case("GPT block", GptBlock(width, heads, 12), activations),
        Case("Llama block", llama, activations),
        Case(
            "head and loss",
            Head(nn.LayerNorm(width), words, width),
            lambda: (*activations(), *tokens()),
        ),
        Case("encoder layer", encoder, activations),
        Case("experts", Experts(width, 4), activations),
        Case("routed experts, cast", RoutedExperts(width, 4), activations),
        Case("float8 MLP", Float8Mlp(width), activations),
        *([Case("compiled MLP", _compiled(Mlp(width)), activations)] if options.compile else []),
        Case("embedding", GptEmbedding(words, options.time, width), tokens),
    ]
    for case in cases:
        case.layer.to(**place)
        for parameter in case.layer.parameters():
            parameter.grad = torch.zeros_like(parameter)
    return cases


def _compiled(layer: nn.Module) -> nn.Module:
    """A region compiled by torch, which the split leaves to autograd."""
    layer.compile()
    return layer


class Ours:
    """One micro-batch as the executor runs it: on a tape, or plainly where BW will follow."""

    def __init__(self, case: Case, *, fused: bool = False) -> None:
        x, *rest = case.inputs()
        self.recorder, self.tape, self.box = case.recorder, case.recorder.new_tape(), None
        if x.is_floating_point():
            x, self.box = enter(x)
        if fused:
            y = case.layer(x, *rest)
        else:
            y = self.recorder.forward(self.tape, case.layer, x, *rest)
        self.edge, self.shape = get_gradient_edge(y), (y.shape, y.dtype, y.device)

    def grad(self) -> Tensor | None:
        """The gradient that the next stage would send back."""
        shape, dtype, device = self.shape
        return torch.ones(shape, dtype=dtype, device=device) if shape else None

    def input_pass(self) -> None:
        """B"""
        self.recorder.backward_input(self.tape, self.edge, self.grad())
        self._send()

    def fused(self) -> None:
        """BW"""
        torch.autograd.backward(self.edge, self.grad())
        self._send()

    def _send(self) -> None:
        del self.edge
        if self.box is not None:
            self.box.take()


class Autograd:
    """One micro-batch through ordinary autograd, kept as a pipeline without a split would."""

    def __init__(self, case: Case) -> None:
        self.layer = case.layer
        self.x, *rest = case.inputs()
        if self.x.is_floating_point():
            self.x.requires_grad_()
        self.y = case.layer(self.x, *rest)
        self.groups: list[dict[str, Any]] = []

    def backward(self) -> None:
        """The whole backward."""
        self.y.backward(torch.ones_like(self.y))

    def input_pass(self) -> None:
        """The first half of PyTorch's own split; keeps only what its second half needs."""
        grads = [torch.ones_like(self.y)]
        _, self.groups = pytorch.stage_backward_input(
            [self.y], grads, [self.x], self.layer.parameters()
        )
        del self.x, self.y

    def weight_pass(self) -> None:
        """The second half."""
        pytorch.stage_backward_weight(self.layer.parameters(), self.groups)


def run_split(case: Case) -> None:
    """F, B, W"""
    run = Ours(case)
    run.input_pass()
    run.tape.backward_weight()


def run_pytorch(case: Case) -> None:
    """PyTorch's forward, input pass and weight pass."""
    run = Autograd(case)
    run.input_pass()
    run.weight_pass()


WAYS: dict[str, Callable[[Case], None]] = {
    "split": run_split,
    "fused": lambda case: Ours(case, fused=True).fused(),
    "autograd": lambda case: Autograd(case).backward(),
    "pytorch": run_pytorch,
}


def splits_in_pytorch(case: Case) -> bool:
    """PyTorch's split starts from the stage's input, so it has none for token ids.

    Of torch 2.13 it also raises where outputs are joined views, and in compiled layers.
    """
    if not case.inputs()[0].is_floating_point():
        return False
    try:
        run_pytorch(case)
    except RuntimeError:
        return False
    return True


def seconds(work: Callable[[], None], device: str) -> float:
    """One run's time, the device's queue drained before and after."""
    alone = device == "cpu" and torch.get_num_threads() == 1
    clock = time.process_time if alone else time.perf_counter
    synchronise(device)
    start = clock()
    work()
    synchronise(device)
    return clock() - start


def synchronise(device: str) -> None:
    """Wait for the device."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def time_ways(case: Case, options: argparse.Namespace) -> dict[str, list[float]]:
    """Seconds per round of each way, the ways taking turns, the first changing every round."""
    names = [way for way in WAYS if way != "pytorch" or splits_in_pytorch(case)]
    times: dict[str, list[float]] = {name: [] for name in names}
    for round_ in range(-options.warmup, options.rounds):
        for turn in range(len(names)):
            name = names[(turn + round_) % len(names)]
            taken = seconds(lambda name=name: WAYS[name](case), options.device)  # type: ignore[misc]
            if round_ >= 0:
                times[name].append(taken)
    return times


def kept_bytes(make: Callable[[], object], device: str) -> int:
    """Bytes that what `make` returns still holds, of what was allocated while it ran."""
    gc.collect()
    if device.startswith("cuda"):
        before = torch.cuda.memory_allocated()
        held = make()
        return torch.cuda.memory_allocated() - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        held = make()
    events = recorded.profiler.kineto_results.experimental_event_tree()
    total = sum(_allocated(event) for event in events)
    del held
    return total


def _allocated(event: Any) -> int:
    own = event.extra_fields.alloc_size if event.name == "[memory]" else 0
    return own + sum(_allocated(child) for child in event.children)


def after_input_pass(kind: type[Ours] | type[Autograd], case: Case) -> object:
    """A micro-batch in the state between the two halves."""
    run = kind(case)
    run.input_pass()
    return run


def ratio(times: dict[str, list[float]], way: str, base: str) -> float:
    """The median over rounds of one way's time over another's."""
    rounds = zip(times[way], times[base], strict=True)
    return statistics.median(a / b for a, b in rounds)


def measure(case: Case, dtype: str, options: argparse.Namespace) -> Row:
    """Time all ways, and count the bytes that they hold."""
    times = time_ways(case, options)
    splits = "pytorch" in times
    return Row(
        case.name,
        dtype,
        statistics.median(times["fused"]) * 1e3,
        ratio(times, "split", "fused"),
        ratio(times, "fused", "autograd"),
        ratio(times, "split", "autograd"),
        ratio(times, "pytorch", "autograd") if splits else None,
        kept_bytes(lambda: Ours(case), options.device),
        kept_bytes(lambda: _without_output(Autograd(case)), options.device),
        kept_bytes(lambda: after_input_pass(Ours, case), options.device),
        kept_bytes(lambda: after_input_pass(Autograd, case), options.device) if splits else None,
        deferred_share(case),
    )


def deferred_share(case: Case) -> float:
    """Of the elements of the trained weights, the share whose gradients wait for W."""
    ours = Ours(case)
    ours.input_pass()
    waiting = sum(parameter.numel() for parameter in ours.tape.deferred)
    return waiting / sum(p.numel() for p in case.layer.parameters() if p.requires_grad)


def _without_output(run: Autograd) -> object:
    # Only what the backward needs is compared: the graph, and the input as its leaf.
    return run.x, get_gradient_edge(run.y)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cpu")
    dtypes = ("float32", "bfloat16")
    parser.add_argument("--dtype", nargs="+", default=dtypes[:1], choices=dtypes)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--time", type=int, default=256, help="tokens per sequence")
    parser.add_argument("--width", type=int, default=768, help="a multiple of 64")
    parser.add_argument("--vocabulary", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--warmup", type=int, default=3, help="rounds before those that count")
    parser.add_argument("--compile", action="store_true", help="a compiled layer too")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="on a CPU")
    return parse_without_seeds(parser, arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure every kind of layer, print and save a row for each, then print the table."""
    options = parse(arguments)
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    about = (
        f"{options.device}, batch {options.batch}, {options.time} tokens, width {options.width}, "
        f"vocabulary {options.vocabulary}, {options.rounds} rounds, {options.threads} threads."
    )
    request = Run("split-cost", about, 1, 0, None)
    rows = (
        measure(case, dtype, options)
        for dtype in options.dtype
        for case in make_cases(options, dtype)
    )
    report_rows(rows, options.json, FORMAT, request, table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
