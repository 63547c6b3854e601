"""The options that do not go with `--versions`."""

from typing import TYPE_CHECKING

from synth.errors import SynthError
from synth.options.defaults import AUTO
from synth.options.keywords import word

if TYPE_CHECKING:
    from synth.options.solve_arguments import SolveArguments


def check_goes_with_versions(given: "SolveArguments") -> None:
    """Refuse options that do not go with a pipeline that is never flushed.

    Raises:
        SynthError: one is given.
    """
    if given.versions is None:
        return
    refused = {
        "--target": (given.target is not None, "give a --mem-limit"),
        "--hint": (given.hint is not None, "its search begins from the published schedules"),
        "--solver milp": (given.solver == "milp", "its models are for CP-SAT"),
        f"--data-parallel {given.data_parallel}": (
            given.data_parallel != 1,
            "every update would wait for the other pipelines",
        ),
        f"--weights {given.weights}": (given.weights != "stay", "versions are of weights at home"),
        f"--objective {given.objective}": (
            word(given.objective) != "makespan",
            "the time of a micro-batch is minimized while the pipeline is full",
        ),
        f"--placement {given.placement}": (
            word(given.placement or "") == AUTO,
            "give linear, looped:N, v or wave:N",
        ),
        f"--partition {given.partition}": (
            word(given.partition or "") == AUTO,
            "give even, or the layers of each stage",
        ),
        f"--recompute {given.recompute}": (
            not word(given.recompute or "none").startswith(("none", "layers:")),
            "give none, or layers such as layers:0-3, which are recomputed within B",
        ),
    }
    for option, (is_there, way) in refused.items():
        if is_there:
            raise SynthError(
                f"{option} and --versions {given.versions} do not go together; {way}; or leave "
                f"--versions out"
            )
