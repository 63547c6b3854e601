"""All programs of a rank on a ring: every order of its ops, and every place of its visits."""

from collections.abc import Iterator
from typing import NamedTuple

from synth.op_kinds import READING, OpKind
from synth.schedule.ops import Op
from synth.solver.weight_passing.problem import WeightPassingProblem

F, B, W, BW, UNSHARD = OpKind.F, OpKind.B, OpKind.W, OpKind.BW, OpKind.UNSHARD


class _Counts(NamedTuple):
    """What a rank has run of a stage: its F's, its B's and BW's, and its W's and BW's."""

    forwards: int = 0
    backwards: int = 0
    added: int = 0


class RankPrograms:
    """The programs of one rank, with rounds in the place of micro-batches.

    Rounds of a stage are in order (the FIFO lemma of `compute_order`). A visit begins after the
    last reader of the one before, and its weights are read at least once; the last reader frees
    them, and nothing can free them sooner.
    """

    def __init__(self, passing: WeightPassingProblem, rank: int) -> None:
        self.num_stages, self.rounds = len(passing.stages), passing.rounds
        flow = passing.flow()
        self._away = [s for s in range(self.num_stages) if not flow.keeps_all(s, rank)]

    def all(self) -> Iterator[tuple[Op, ...]]:
        """Yield each program once."""
        yield from self._continued([], [_Counts()] * self.num_stages, frozenset(), frozenset())

    def _continued(
        self, done: list[Op], counts: list[_Counts], held: frozenset[int], unread: frozenset[int]
    ) -> Iterator[tuple[Op, ...]]:
        """Yield the programs that begin with some ops.

        Args:
            held: the stages away from home whose weights have come.
            unread: those of them that nothing has read since.
        """
        if all(each.added == self.rounds for each in counts):
            yield tuple(done)
            return
        for stage in self._away:
            # B's and BW's read weights last.
            if stage not in unread and counts[stage].backwards < self.rounds:
                op = Op(UNSHARD, stage, 0)
                yield from self._continued([*done, op], counts, held | {stage}, unread | {stage})
        for op in self._next(counts):
            if op.kind in READING and op.stage in self._away and op.stage not in held:
                continue
            more = list(counts)
            more[op.stage] = _after(counts[op.stage], op.kind)
            still = unread - {op.stage} if op.kind in READING else unread
            yield from self._continued([*done, op], more, held, still)

    def _next(self, counts: list[_Counts]) -> Iterator[Op]:
        """Yield the ops whose inputs are there, besides weights."""
        for stage, now in enumerate(counts):
            before = self.rounds if stage == 0 else counts[stage - 1].forwards
            if now.forwards < before:
                yield Op(F, stage, now.forwards)
            is_last = stage == self.num_stages - 1
            ready = counts[stage].forwards if is_last else counts[stage + 1].backwards
            if now.backwards < ready:
                yield Op(B, stage, now.backwards)
                if now.added == now.backwards:
                    yield Op(BW, stage, now.backwards)
            if now.added < now.backwards:
                yield Op(W, stage, now.added)


def _after(now: _Counts, kind: OpKind) -> _Counts:
    if kind == F:
        return now._replace(forwards=now.forwards + 1)
    if kind == W:
        return now._replace(added=now.added + 1)
    fused = kind == BW
    return now._replace(backwards=now.backwards + 1, added=now.added + fused)
