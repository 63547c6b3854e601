"""F and BW that run at once on a CUDA device: two streams.

    main     |·· begins ··|──── BW(i) ────| waits | SEND …
    beside                 └── F(j) ──┘──────┘

Autograd runs a backward on the stream of its forward, so a stream belongs to a stage's micro-batch:
the two of a pair have different ones, and all ops of those of the stream beside run there. An op
there begins after what the main stream was given before it, and the main stream then waits for it;
for a pair both hold as a whole. So memory of either stream is used again only after all uses, with
the frees of a pair behind its second op.
"""

from collections.abc import Callable, Sequence, Set
from itertools import pairwise
from typing import Any

import torch

from synth.schedule.arrays import Cell
from synth.schedule.ops import Op

_Run = Callable[[], Any]


class PairStreams:
    """Runs the ops of one rank on two streams of its device."""

    def __init__(self, ops: Sequence[Op], overlapped: Set[Op], device: torch.device) -> None:
        """Divide the micro-batches of the rank's stages among both streams.

        Args:
            ops: of the rank, in order.
            overlapped: the F's that run at once with the op behind them.
            device: a CUDA device.
        """
        self._device, self._firsts = device, overlapped
        self._seconds = {after for op, after in pairwise(ops) if op in overlapped}
        self._cells = cells_beside(ops, overlapped)
        self._beside = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._begun: torch.cuda.Event | None = None
        # Gradients of both streams go into the same parameters; autograd waits where it must.
        torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(False)

    def running(self, op: Op, run: _Run) -> _Run:
        """Return a function that runs an op on its stream."""
        is_beside, is_first, is_second = (
            op[1:] in self._cells,
            op in self._firsts,
            op in self._seconds,
        )
        if not (is_beside or is_first or is_second):
            return run

        def on_stream() -> None:
            main = torch.cuda.current_stream(self._device)
            if not is_second:
                self._begun = main.record_event()
            if is_beside:
                assert self._begun is not None
                self._beside.wait_event(self._begun)
                with torch.cuda.stream(self._beside):
                    run()
            else:
                run()
            if not is_first:
                main.wait_stream(self._beside)

        return on_stream


def cells_beside(ops: Sequence[Op], overlapped: Set[Op]) -> set[Cell]:
    """Return the (stage, micro-batch, replica) whose ops run on the stream beside the main one.

    The F of a pair has the other stream than the micro-batch of the BW, whose own F is over.
    """
    beside: set[Cell] = set()
    for op, after in pairwise(ops):
        if op in overlapped and after[1:] not in beside:
            beside.add(op[1:])
    return beside
