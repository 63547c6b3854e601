"""The pace of emulated devices and links: how a run differs from the times of its plan."""

import random

from synth.op_kinds import OpKind
from synth.run_options.emulation_options import Disturbance
from synth.schedule.lowering.lower import Transfer

# A duration varies around its plan and stays positive.
_LEAST_FACTOR = 0.1


class Pace:
    """Draws the times of one rank's ops and transfers.

    Each kind of op of a stage and each link has a random stream of its own. Their order does not
    change with look-ahead, so an op has the same time in either order of the program, and both ends
    of a transfer draw the same one.
    """

    def __init__(self, disturbance: Disturbance, rank: int) -> None:
        """Begin the streams of a rank."""
        self._disturbance = disturbance
        self._rank = rank
        self._streams: dict[object, random.Random] = {}

    def op_us(self, kind: OpKind, stage: int, planned_us: int) -> int:
        """The time of the next op of a kind and stage."""
        is_slow = self._rank == self._disturbance.slow_rank
        factor = self._disturbance.slow_rank_factor if is_slow else 1.0
        return round(planned_us * factor * self._jitter((self._rank, str(kind), stage)))

    def transfer_us(self, transfer: Transfer, *, sends: bool) -> int:
        """The time of the next transfer of a link, as its sender or its receiver sees it."""
        link = transfer.source, transfer.target
        slow = self._disturbance.slow_link
        is_slow = slow is not None and set(link) == set(slow)
        factor = self._disturbance.slow_link_factor if is_slow else 1.0
        return round(transfer.duration_us * factor * self._jitter(link, sends))

    def _jitter(self, name: tuple[object, ...], end: bool = False) -> float:
        spread = self._disturbance.jitter
        if not spread:
            return 1.0
        seed = f"{self._disturbance.seed} {name}"
        stream = self._streams.setdefault((name, end), random.Random(seed))
        return max(_LEAST_FACTOR, stream.gauss(1.0, spread))
