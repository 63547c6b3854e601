"""The memory that must stay free so that a rank can finish its oldest micro-batch."""

from collections.abc import Sequence

from synth.solver.instance.instance import BW, B, F, Instance, W


class CompletionReserve:
    """The need of one replica's micro-batches on a rank, each W run right after its B.

    A micro-batch goes down the rank's copies by F's, then up again by B and W, or BW, of each.
    `reserve_bytes[p]` is the highest usage above the present one that the steps from p on need.
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
        """Return the reserve of the oldest micro-batch on the rank, 0 if there is none.

        Args:
            counts: F's and B's done of each stage copy.
        """
        oldest = counts[self.copies[0]][1]
        done = sum((counts[c][0] > oldest) + (counts[c][1] > oldest) for c in self.copies)
        return self.reserve_bytes[done] if done else 0


def _peak_above_bytes(instance: Instance, copy: int) -> int:
    """The peak above the present usage of a backward, as B and W or as BW, whichever needs less."""
    delta, peak_above = instance[copy].delta_bytes, instance[copy].peak_above_bytes
    return min(peak_above[BW], max(peak_above[B], delta[B] + peak_above[W]))
