"""Reading `--objective`."""

from synth.errors import SynthError
from synth.objective import Objective


def read_objective(text: str) -> Objective:
    """Read `makespan`, `period` or `iterations:8`.

    Raises:
        SynthError: none of these.
    """
    try:
        return Objective.parse(text)
    except ValueError as error:
        raise SynthError(f"§objective {error}") from None
