"""Reading `--objective`."""

from typing import TYPE_CHECKING

from synth.errors import SynthError

if TYPE_CHECKING:
    from synth.objective import Objective


def read_objective(text: str) -> "Objective":
    """Read `makespan`, `period` or `iterations:8`.

    Raises:
        SynthError: none of these.
    """
    from synth.objective import Objective

    try:
        return Objective.parse(text)
    except ValueError as error:
        raise SynthError(f"--objective {error}") from None
