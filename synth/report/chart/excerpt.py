"""The part of a schedule that is drawn: some of its ranks, in a range of time."""

from dataclasses import dataclass

from synth.errors import SynthError
from synth.units import format_us


@dataclass(frozen=True)
class Excerpt:
    """Ranks and a range of time in microseconds; None: all ranks, and up to the end."""

    start_us: int = 0
    end_us: int | None = None
    ranks: tuple[int, ...] | None = None

    def shown_ranks(self, num_ranks: int) -> tuple[int, ...]:
        """Return the ranks that are drawn.

        Raises:
            SynthError: there is no rank of one of the numbers.
        """
        if self.ranks is None:
            return tuple(range(num_ranks))
        beyond = [rank for rank in self.ranks if rank >= num_ranks]
        if beyond:
            raise SynthError(
                f"--ranks names rank {beyond[0]}; the plan has the ranks 0 to {num_ranks - 1}"
            )
        return self.ranks

    def ends_us(self, last_us: int) -> tuple[int, int]:
        """Return the range of time that is drawn, of schedules that end at a time.

        Raises:
            SynthError: nothing lies in the range.
        """
        end_us = last_us if self.end_us is None else self.end_us
        if not self.start_us < end_us or self.start_us >= max(last_us, 1):
            raise SynthError(
                f"nothing lies between {format_us(self.start_us)} and {format_us(end_us)}; give "
                f"--from and --to between 0 and {format_us(last_us)}"
            )
        return self.start_us, end_us
