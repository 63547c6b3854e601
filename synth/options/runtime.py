"""The options that do not go with `--for`."""

from typing import TYPE_CHECKING

from synth.options.conflicts import refuse_beside
from synth.plan.runtimes import Runtime

if TYPE_CHECKING:
    from synth.options.arguments.solve import SolveArguments


def check_goes_with_runtime(given: "SolveArguments") -> None:
    """Refuse options whose schedules another runtime cannot execute.

    Raises:
        SynthError: one is given.
    """
    runtime = given.freedom.runtime
    if runtime == Runtime.SYNTH:
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
