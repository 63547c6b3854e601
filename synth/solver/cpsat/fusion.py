"""The choice between B W and BW in the exact model, for a stage copy.

BW k does B k and, right after it, some W: by the FIFO lemma the next W by number, which is W k
only if none is waiting. So a literal says for each B and W whether one BW does both. A fused B
lasts min(B, BW) and its W the rest; the gradient leaves when the W ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from synth.solver.cpsat.or_tools import cp_model
from synth.solver.instance.instance import BW, B, Instance, OpIndex, W
from synth.solver.instance.timing import Pair


class Fusion:
    """Literals of one copy: `fused_b[k]`, `fused_w[k]`, and the pairs of B and W."""

    def __init__(
        self,
        cp: cp_model.CpModel,
        instance: Instance,
        copy: int,
        start: Mapping[tuple[int, OpIndex], cp_model.LinearExpr],
    ) -> None:
        self.cp, self.costs, self.copy, self.start = cp, instance[copy], copy, start
        self.m = self.costs.num_micro_batches
        self.fused_b = [cp.new_bool_var(f"fused_b{copy}.{k}") for k in range(self.m)]
        self.fused_w = [cp.new_bool_var(f"fused_w{copy}.{k}") for k in range(self.m)]
        # At BW k at most `most_waiting` W's wait, and the next W is the first of them.
        waiting = self._most_waiting(instance.headroom_of(copy))
        self.pairs = {
            Pair(copy, k, w): cp.new_bool_var(f"bw{copy}.{k}.{w}")
            for k in range(self.m)
            for w in range(max(0, k - waiting), k + 1)
        }
        self._match()
        self._stay_together()

    def _most_waiting(self, headroom_bytes: int | None) -> int:
        """Return the most micro-batches between their B and their W that memory allows."""
        each = -self.costs.delta_bytes[W]
        return (
            self.m if headroom_bytes is None or each == 0 else min(self.m, headroom_bytes // each)
        )

    def duration_us(self, op_index: OpIndex) -> cp_model.LinearExpr | int:
        """Return the duration of an op, which depends on whether it is fused."""
        durations = self.costs.duration_us
        backward_us = min(durations[B], durations[BW])
        if op_index.kind == B:
            saved_us = durations[B] - backward_us
            return durations[B] - saved_us * self.fused_b[op_index.microbatch]
        if op_index.kind == W:
            saved_us = durations[W] - (durations[BW] - backward_us)
            return durations[W] - saved_us * self.fused_w[op_index.microbatch]
        return durations[op_index.kind]

    def separate(self, op_index: OpIndex) -> cp_model.LiteralT | None:
        """Return the literal that a B or W is not fused, so that its own peak counts."""
        if op_index.kind == B:
            return ~self.fused_b[op_index.microbatch]
        return ~self.fused_w[op_index.microbatch] if op_index.kind == W else None

    def _match(self) -> None:
        """A fused B has exactly one W, a fused W exactly one B."""
        for k in range(self.m):
            of_b = [literal for pair, literal in self.pairs.items() if pair.backward == k]
            of_w = [literal for pair, literal in self.pairs.items() if pair.weight == k]
            self.cp.add_exactly_one([*of_b, ~self.fused_b[k]])
            self.cp.add_exactly_one([*of_w, ~self.fused_w[k]])

    def _stay_together(self) -> None:
        """The W of a BW starts when its B ends."""
        durations = self.costs.duration_us
        backward_us = min(durations[B], durations[BW])
        for pair, literal in self.pairs.items():
            weight = self.start[self.copy, OpIndex(W, pair.weight)]
            backward = self.start[self.copy, OpIndex(B, pair.backward)]
            self.cp.add(weight == backward + backward_us).only_enforce_if(literal)

    def hint(self, fused: Iterable[Pair]) -> None:
        """Hint these pairs."""
        chosen = {pair for pair in fused if pair.copy == self.copy}
        for pair, literal in self.pairs.items():
            self.cp.add_hint(literal, pair in chosen)
        for k in range(self.m):
            self.cp.add_hint(self.fused_b[k], any(pair.backward == k for pair in chosen))
            self.cp.add_hint(self.fused_w[k], any(pair.weight == k for pair in chosen))

    def chosen(self, value: Callable[[cp_model.IntVar], int]) -> Iterator[Pair]:
        """Return the pairs of a solution."""
        return (pair for pair, literal in self.pairs.items() if value(literal))
