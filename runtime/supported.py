"""What of the data model the executor cannot run yet."""

from synth.errors import SynthError
from synth.kinds import MOVES, OpKind
from synth.schedule.lower import Lowered

_NOT_YET = {OpKind.R: "rebuilds", **dict.fromkeys(MOVES, "moves")}


def check_supported(lowered: Lowered) -> None:
    """Refuse a schedule before anything is started for it.

    Raises:
        SynthError: one of its ops cannot be executed; names the first.
    """
    for rank, program in enumerate(lowered.ops):
        for op in program:
            if op.kind in _NOT_YET:
                raise SynthError(
                    f"rank {rank} has {op}: the schedule {_NOT_YET[op.kind]} what a forward saves; "
                    f"such schedules can be shown and checked, but not executed yet: take one "
                    f"without {op.kind}"
                )
