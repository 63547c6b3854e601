"""Training on the device: losses against the CPU's, optimizers, and copies beside compute."""

import time
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.step import Where
from synth.families import generate
from synth.profile.optimizer import OptimizerSpec
from synth.runtime.batch import Batch
from synth.runtime.execution.transport.host.host_link import HostLink
from synth.runtime.execution.transport.in_process.ranks import InProcessGroup, run_ranks
from synth.runtime.models import ModelSpec, build_model
from synth.runtime.optimize import StepSettings, build_steps
from synth.runtime.pipeline import Pipeline
from synth.schedule.lowering.lower import Transfer
from synth.schedule.ops import Value, ValueKind

_MODEL = {"vocabulary_size": 256, "num_heads": 4, "context_length": 64}
_OPTIMIZERS = ("adamw", "sgd:0.9", "adamw+master", "adamw+post-validation")


def training(where: Where) -> dict[str, Any]:
    """Train the same small GPT on the device and on the CPU, two ranks as threads.

    In float32 the losses agree to its rounding; in bfloat16 they stay near.
    """
    steps = where.pick(2, 60)
    found: dict[str, Any] = {"steps": steps}
    for dtype in ("float32", "bfloat16"):
        here = _losses(where.device, where, dtype, "adamw", steps)
        there = _losses("cpu", where, dtype, "adamw", steps)
        pairs = list(zip(here, there, strict=True))
        found[dtype] = {
            "first": here[0],
            "last": here[-1],
            "largest_relative_difference": max(abs(a - b) / abs(b) for a, b in pairs),
        }
    return found


def optimizers(where: Where) -> dict[str, Any]:
    """Train with each kind of optimizer step, in bfloat16: the first and the last loss."""
    steps = where.pick(2, 20)
    found = {}
    for name in _OPTIMIZERS:
        losses = _losses(where.device, where, "bfloat16", name, steps)
        found[name] = [losses[0], losses[-1]]
    return {"losses": found}


def _losses(device: str, where: Where, dtype: str, optimizer: str, steps: int) -> list[float]:
    schedule = generate("zb-h1", 2, 4)
    spec = ModelSpec("gpt", {**_MODEL, "width": where.pick(32, 256), "num_blocks": 2})
    made = build_model(spec, seed=0, device=device, dtype=getattr(torch, dtype)).layers
    layers = list(made.values())

    def train(group: InProcessGroup) -> list[float]:
        mine = layers[:2] if group.rank == 0 else layers[2:]
        pipeline = Pipeline(schedule, mine, group=group)
        pipeline.stepper = build_steps(
            pipeline.updated,
            OptimizerSpec.parse(optimizer),
            StepSettings(learning_rate=1e-3),
            device=pipeline.device,
            clip_norm=1.0,
            group=pipeline.separate_group(),
            owned=pipeline.owns,
        )
        found = []
        for step in range(steps):
            tokens = _tokens(step, schedule.num_micro_batches).to(device)
            batch = Batch(list(tokens[..., :-1]), list(tokens[..., 1:]))
            loss = pipeline.step(batch)
            if loss is not None:
                found.append(float(loss))
        return found

    return run_ranks(2, train, timeout_s=60.0)[1]


def _tokens(step: int, count: int) -> Tensor:
    """Sequences that count up, so that there is something to learn."""
    draw = torch.Generator().manual_seed(step)
    start = torch.randint(256, (count, 4, 1), generator=draw)
    return (start + torch.arange(33)) % 256


def offload_overlap(where: Where) -> dict[str, Any]:
    """Send memory to the host and back while the device multiplies, against one after the other.

    1 would be no overlap, and the longer one's share of the sum the best.
    """
    device = torch.device(where.device)
    count, size = where.pick((2, 64), (20, 8192))
    data = torch.ones(where.pick(1 << 18, 1 << 30), dtype=torch.uint8, device=device)
    matrix = torch.randn(size, size, device=device)
    link = HostLink(device)

    def compute() -> None:
        for _ in range(count):
            matrix.mm(matrix)

    def move() -> None:
        link.send((data,), _transfer(ValueKind.MOVED_OUT)).wait()
        link.receive((torch.empty_like(data),), _transfer(ValueKind.MOVED_BACK)).wait()

    def both() -> None:
        sending = link.send((data,), _transfer(ValueKind.MOVED_OUT))
        compute()
        sending.wait()
        receiving = link.receive((torch.empty_like(data),), _transfer(ValueKind.MOVED_BACK))
        compute()
        receiving.wait()

    times = {}
    for name, action in (("compute", compute), ("move", move), ("both", both)):
        action()
        times[name] = _seconds(action, device)
    whole = 2 * times["compute"] + times["move"]
    return {
        "seconds": times,
        "bytes_per_s": 2 * data.nbytes / times["move"],
        "both_over_sum": times["both"] / whole,
        "best_possible": max(2 * times["compute"], times["move"]) / whole,
    }


def _transfer(kind: ValueKind) -> Transfer:
    from synth.costs.costs import HOST

    ends = (0, HOST) if kind == ValueKind.MOVED_OUT else (HOST, 0)
    return Transfer(Value(kind, 0, 0), *ends, 0, 0)


def _seconds(action: Any, device: torch.device) -> float:
    def settle() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    settle()
    began = time.perf_counter()
    action()
    settle()
    return time.perf_counter() - began
