"""The ops that offload saved activations, as the executor runs them: O, L, K and G.

O   the stage gives up its saved activations; they are `out` in the table, sent right after
K   no work: the receive before it has allocated the buffer for `out`
G   `out` becomes `back`, sent right after
L   no work: the receive before it has allocated the buffer for `back`
B   waits for `back`, as for all its inputs, and gives it to the stage
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial

import torch

from synth.errors import SynthError
from synth.op_kinds import OpKind
from synth.schedule.ops import Op, ValueKind

from ..base.boundary import Tensors
from ..base.stage_protocol import StageProtocol
from ..base.step_table import Slots, StepTable
from .storage_refcount import check_countable

Work = Callable[[], None]


class OffloadOps:
    """The offloading ops of one rank; `table` is shared by all steps."""

    def __init__(
        self, ops: Iterable[Op], stages: Mapping[int, StageProtocol], slots: Slots, table: StepTable
    ) -> None:
        self._moved = {op[1:] for op in ops if op.kind == OpKind.OFFLOAD}
        if self._moved:
            check_countable()
        self._stages = stages
        self._slots = slots
        self._table = table

    def moves(self, op: Op) -> bool:
        """True if the saved activations of the op's micro-batch leave the rank."""
        return op[1:] in self._moved

    def buffers(self, stage: int, microbatch: int, device: torch.device) -> Tensors:
        """Make a buffer for each storage that moves, of a size known from a trial or since O."""
        sizes = self._table.saved_sizes.get((stage, microbatch))
        if sizes is None:
            sizes = self._stages[stage].saved_sizes(microbatch)
        return tuple(torch.empty(n, dtype=torch.uint8, device=device) for n in sizes)

    def offload(self, op: Op) -> Work:
        """Return O as a function."""
        return partial(self._offload, op, self._slots.of(ValueKind.MOVED_OUT, op.stage, op))

    def expect(self, op: Op) -> Work:
        """Return K or L as a function that does nothing, because transfers do their work."""
        return lambda: None

    def give(self, op: Op) -> Work:
        """Return G as a function."""
        out = self._slots.of(ValueKind.MOVED_OUT, op.stage, op)
        return partial(self._give, out, self._slots.of(ValueKind.MOVED_BACK, op.stage, op))

    def backward(self, op: Op, run: Work) -> Work:
        """Return B or BW with activations that came back, as a function."""
        back = self._slots.of(ValueKind.MOVED_BACK, op.stage, op)
        return partial(self._backward, op, back, run)

    def _offload(self, op: Op, out: int) -> None:
        table, stage = self._table, self._stages[op.stage]
        table.values[out] = stage.take_saved(op.microbatch)
        sizes = stage.saved_sizes(op.microbatch)
        told = table.saved_sizes.get((op.stage, op.microbatch), sizes)
        if sizes != told:
            raise SynthError(
                f"stage {op.stage} saved {len(sizes)} tensors of {sum(sizes)} bytes, where its "
                f"trial saved {len(told)} of {sum(told)}: what another rank is to keep must have "
                f"sizes that follow from the shapes of the inputs alone; take a schedule without "
                f"K and G"
            )

    def _give(self, out: int, back: int) -> None:
        values = self._table.values
        values[back] = values[out]

    def _backward(self, op: Op, back: int, run: Work) -> None:
        self._put_back(op, back)
        run()

    def _put_back(self, op: Op, back: int) -> None:
        """Hand `back` over to the stage, which then holds it alone, so that B can free it."""
        values = self._table.values
        saved, values[back] = values[back], None
        if saved is None:
            raise RuntimeError(f"{op} before its saved activations came back")
        self._stages[op.stage].put_back(op.microbatch, saved)
