"""The way of one micro-batch through a rank, each W right behind its B: what memory it needs."""

from collections.abc import Sequence

from synth.solve.instance.instance import BW, B, F, Instance, W


class CompletionReserve:
    """One replica's copies on a rank: F's down, then for each copy, going up, B and W, or BW.

    `reserve_bytes[p]` is the most that is needed above the level, from after p of these steps on.
    """

    def __init__(self, instance: Instance, copies: tuple[int, ...]) -> None:
        self.copies = copies
        steps = [(instance[c].delta_bytes[F], instance[c].peak_above_bytes[F]) for c in copies]
        for c in reversed(copies):
            steps.append((instance[c].delta_bytes[BW], _peak_above_bytes(instance, c)))
        self.reserve_bytes = [0] * (len(steps) + 1)
        for place in reversed(range(len(steps))):
            delta, peak_above = steps[place]
            self.reserve_bytes[place] = max(peak_above, delta + self.reserve_bytes[place + 1])

    def of_oldest(self, counts: Sequence[Sequence[int]]) -> int:
        """What the oldest micro-batch on the rank still needs, 0 if there is none.

        Args:
            counts: F's and B's done, stage copy by stage copy.
        """
        oldest = counts[self.copies[0]][1]
        done = sum((counts[c][0] > oldest) + (counts[c][1] > oldest) for c in self.copies)
        return self.reserve_bytes[done] if done else 0


def _peak_above_bytes(instance: Instance, copy: int) -> int:
    """The most above the level before the backward, B and W or BW, whichever needs less."""
    delta, peak_above = instance[copy].delta_bytes, instance[copy].peak_above_bytes
    return min(peak_above[BW], max(peak_above[B], delta[B] + peak_above[W]))
