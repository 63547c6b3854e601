"""The way of one micro-batch through a rank, each W right behind its B: what memory it needs."""

from collections.abc import Sequence

from synth.solve.instance.instance import BW, B, F, View, W


class Chain:
    """One replica's chunks on a rank: F's down, then for each chunk, going up, B and W, or BW.

    `rest_bytes[p]` is the most that is needed above the level, from after p of these steps on.
    """

    def __init__(self, view: View, chunks: tuple[int, ...]) -> None:
        self.chunks = chunks
        steps = [(view[c].effect_bytes[F], view[c].need_bytes[F]) for c in chunks]
        for c in reversed(chunks):
            steps.append((view[c].effect_bytes[BW], _need_bytes(view, c)))
        self.rest_bytes = [0] * (len(steps) + 1)
        for place in reversed(range(len(steps))):
            effect, need = steps[place]
            self.rest_bytes[place] = max(need, effect + self.rest_bytes[place + 1])

    def rest_of_oldest(self, counts: Sequence[Sequence[int]]) -> int:
        """What the oldest micro-batch on the rank still needs, 0 if there is none.

        Args:
            counts: F's and B's done, chunk by chunk.
        """
        oldest = counts[self.chunks[0]][1]
        done = sum((counts[c][0] > oldest) + (counts[c][1] > oldest) for c in self.chunks)
        return self.rest_bytes[done] if done else 0


def _need_bytes(view: View, chunk: int) -> int:
    """The most above the level before the backward, B and W or BW, whichever needs less."""
    effect, need = view[chunk].effect_bytes, view[chunk].need_bytes
    return min(need[BW], max(need[B], effect[B] + need[W]))
