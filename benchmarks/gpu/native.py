"""The cost of a step of synth's executor against PyTorch's schedules, on one device."""

import logging
from typing import Any

import torch

from benchmarks.executor.case import SIZES, Case
from benchmarks.executor.measure import measure_case
from benchmarks.executor.report import summarize
from benchmarks.gpu.ranks import world_of_one
from benchmarks.gpu.step import Where

# The family, and whether B and W are apart (None: those that the family has apart); each has a
# native class. The first two have one stage, the others two.
_ORDERS = (
    ("gpipe", False),
    ("1f1b", False),
    ("breadth-first", False),
    ("interleaved", False),
    ("interleaved", True),
    ("zb-v", True),
    ("dualpipe-v", None),
)
_MICRO_BATCHES = 8
_RUNTIMES = ["ours", "pytorch", "native", "plain"]


def executor(where: Where) -> dict[str, Any]:
    """Step synth and PyTorch in turn, on one rank that holds all stages and so sends nothing.

    Ratios are medians over the rounds, synth's over PyTorch's: below 1 synth takes less. `against`
    is PyTorch's class of the same name (`native`), or its runtime in synth's order (`runtime`).

    Raises:
        AssertionError: losses or gradients differ by more than rounding.
    """
    logging.getLogger("torch.distributed.pipelining").setLevel(logging.CRITICAL)
    rounds, seconds = where.pick((3, 0.5), (30, 2.0))
    _warm_up(where.device)
    rows = []
    with world_of_one("gloo"):  # both runtimes accept it on any device
        for size in where.pick(("tiny",), ("tiny", "large")):
            for name, split in _ORDERS[:: where.pick(2, 1)]:
                case = Case(
                    name, 1, _MICRO_BATCHES, "mlp", checkpoint=False, split=split,
                    size=SIZES[size], device=where.device,
                )  # fmt: skip
                found = measure_case(case, 0, _RUNTIMES, rounds, seconds)
                rows += [
                    {
                        "size": size, "order": row.order, "split": row.splits,
                        "against": row.against, "step": row.step, "processor": row.cpu,
                        "peak": row.peak, "step_ms": list(row.step_ms),
                    }
                    for row in summarize(case, [found])
                ]  # fmt: skip
    return {"rows": rows}


def _warm_up(device: str) -> None:
    """Let the device's libraries allocate what they keep, which is no runtime's."""
    weights = torch.ones(8, 8, device=device, requires_grad=True)
    (weights @ weights).sum().backward()
