"""Detects ranks that hang: their op has had all its inputs for far longer than whole steps take.

Waiting for other ranks is no sign of a hang, however long it takes. The places of all ranks in
their programs show which rank waits for which. A rank is judged only if its inputs come from ranks
of this machine. Its time starts when those ranks have passed their sends, although the data may not
have arrived yet. The limit allows for one-time work (a compiler, swapping), but is not longer than
the others wait anyway. Only ops between a step's first and its STEPs are judged: work outside of
them (data, the global norm, checkpoints) has no limit. On CUDA the host passes an op that hangs on
the device, so such hangs are not detected here.
"""

import time
from collections.abc import Callable

from synth.op_kinds import OpKind
from synth.schedule.lowering.lower import Action, Lowered
from synth.schedule.ops import Value

_STEPS_OF_PATIENCE = 20
_GAP_S = 5.0

Place = tuple[int, int]
_BEFORE_ALL: Place = (-1, -1)


class HangDetector:
    """Looks at the places of all ranks repeatedly, and remembers since when they stand."""

    def __init__(
        self,
        lowered: Lowered,
        place_of: Callable[[int], Place | None],
        *,
        patience_s: float,
        timeout_s: float,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare to look.

        Args:
            lowered: the programs that the ranks run.
            place_of: returns a rank's step, counted from 0 since it started, and instruction; None:
                unknown. No step has begun yet.
            patience_s: the least time after which a rank counts as hanging; 0: never.
            timeout_s: the time after which waiting ranks give up; the patience never exceeds it.
            now: returns the time in seconds.
        """
        self._lowered, self._place_of, self._now = lowered, place_of, now
        self._least_s, self._most_s = patience_s, timeout_s
        self._sends: dict[tuple[Value, int], tuple[int, int]] = {
            (instruction.moved.value, instruction.moved.target): (rank, place)
            for rank, program in enumerate(lowered.programs)
            for place, instruction in enumerate(program)
            if instruction.action == Action.SEND
        }
        self._places: dict[int, Place] = {}
        self._had_all_since: dict[int, float] = {}
        self._step_began: dict[int, float] = {}
        self._longest_step_s: float | None = None
        self._looked = now()

    def look(self) -> dict[int, float]:
        """Return the ranks that hang, and for how many seconds."""
        now = self._now()
        if now - self._looked > _GAP_S:  # this process itself was held up, others perhaps as well
            self._had_all_since.clear()
            self._step_began.clear()
        since_last_s, self._looked = now - self._looked, now
        for rank in range(self._lowered.num_ranks):
            self._see(rank, now, since_last_s)
        for rank in self._places:
            if self._has_all(rank):
                self._had_all_since.setdefault(rank, now)
        if not self._least_s or self._longest_step_s is None:
            return {}
        patience_s = min(
            max(self._least_s, _STEPS_OF_PATIENCE * self._longest_step_s), self._most_s
        )
        stood = {rank: now - since for rank, since in self._had_all_since.items()}
        return {rank: s for rank, s in stood.items() if s > patience_s}

    def _see(self, rank: int, now: float, since_last_s: float) -> None:
        place = self._place_of(rank)
        is_new = rank not in self._places
        before = self._places.get(rank, _BEFORE_ALL)
        if place is None or (place == before and not is_new):
            return
        self._places[rank] = place
        self._had_all_since.pop(rank, None)
        if before[0] == place[0]:
            return
        if rank in self._step_began:
            took_s = now - self._step_began[rank]
            self._longest_step_s = max(took_s, self._longest_step_s or 0.0)
        elif place[0] > before[0] + 1:  # a whole one since the last look
            self._longest_step_s = max(since_last_s, self._longest_step_s or 0.0)
        if not is_new:  # the first step seen may have begun long ago, and warms up
            self._step_began[rank] = now

    def _has_all(self, rank: int) -> bool:
        """True if a rank is at an op whose inputs have all been sent."""
        step, place = self._places[rank]
        if step < 0 or place < 0:
            return False
        instruction = self._lowered.programs[rank][place]
        if instruction.action != Action.COMPUTE or instruction.compute.kind == OpKind.STEP:
            return False
        reads = self._lowered.effects.reads(instruction.compute)
        sends = [self._sends[value, rank] for value in reads if (value, rank) in self._sends]
        return all(self._places.get(source, _BEFORE_ALL) > (step, at) for source, at in sends)
