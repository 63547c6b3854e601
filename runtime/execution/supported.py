"""What of the data model the executor cannot run yet."""

from synth.errors import SynthError
from synth.kinds import MOVES
from synth.schedule.lower import Lowered


def check_supported(lowered: Lowered) -> None:
    """Refuse a schedule before anything is started for it.

    Raises:
        SynthError: one of its ops cannot be executed; names the first.
    """
    for rank, program in enumerate(lowered.ops):
        for op in program:
            if op.kind in MOVES:
                raise SynthError(
                    f"rank {rank} has {op}: the schedule moves what a forward saves; such plans "
                    f"can be shown and checked, but not executed yet; take one without O, L, K, G"
                )
