"""The options that do not go with `--for`."""

from typing import TYPE_CHECKING

from synth.errors import SynthError
from synth.options.conflicts import refuse_beside
from synth.options.defaults import AUTO, NONE
from synth.options.keywords import word
from synth.options.recompute import LAYERS
from synth.plan.runtimes import Runtime
from synth.units import shown

if TYPE_CHECKING:
    from synth.options.arguments.solve import SolveArguments


def check_goes_with_runtime(given: "SolveArguments") -> None:
    """Refuse options whose schedules another runtime cannot execute.

    Raises:
        SynthError: one is given.
    """
    runtime = given.freedom.runtime
    if given.freedom.allowed.runtime == Runtime.SYNTH:
        return
    refused = {
        "--offload": (given.freedom.offload, f"{runtime} does not offload within a schedule"),
        f"--weights {given.weights}": (
            given.weights != "stay",
            f"{runtime} does not pass weights; give stay",
        ),
        f"--data-parallel {given.data_parallel}": (
            given.data_parallel > 1,
            "solve for one pipeline, and replicate it there",
        ),
        f"--versions {given.versions}": (
            given.versions is not None,
            f"{runtime} flushes the pipeline before each update",
        ),
    }
    refuse_beside(f"--for {runtime}", refused)
    recompute = word(given.recompute or NONE)
    if recompute not in (NONE, AUTO) and not recompute.startswith(LAYERS):
        raise SynthError(
            f"--recompute {shown(recompute)} rebuilds activations in ops R, which {runtime} does "
            f"not have; give layers, such as {LAYERS}0-3 or {LAYERS}all, which are recomputed "
            f"within B, or none"
        )
