"""The options that do not go with `--versions`."""

from collections.abc import Sequence

from synth.options.arguments.solve import SolveArguments
from synth.options.conflicts import refuse_beside
from synth.options.defaults import AUTO
from synth.options.keywords import word


def check_goes_with_versions(given: SolveArguments) -> None:
    """Refuse options that do not go with a pipeline that is never flushed.

    Raises:
        SynthError: one is given.
    """
    if given.versions is None:
        return
    refused = {
        "§target": (given.target is not None, "give a §mem_limit"),
        "§hint": (given.hint is not None, "its search begins from the published schedules"),
        "§solver milp": (given.solver == "milp", "its models are for CP-SAT"),
        f"§data_parallel {given.data_parallel}": (
            given.data_parallel != 1,
            "every update would wait for the other pipelines",
        ),
        f"§weights {given.weights}": (given.weights != "stay", "versions are of weights at home"),
        f"§objective {given.objective}": (
            word(given.objective) != "makespan",
            "the time of a micro-batch is minimized while the pipeline is full",
        ),
        f"§placement {given.placement}": (
            word(given.placement or "") == AUTO,
            "give linear, looped:N, v or wave:N",
        ),
        f"§partition {given.partition}": (
            word(given.partition or "") == AUTO,
            "give even, or the layers of each stage",
        ),
        f"§recompute {given.recompute}": (
            not word(given.recompute or "none").startswith(("none", "layers:")),
            "give none, or layers such as layers:0-3, which are recomputed within B",
        ),
    }
    refuse_beside(f"§versions {given.versions}", refused)


def check_goes_with_version_rows(
    versions: Sequence[str], placements: Sequence[str], recompute: str | None
) -> None:
    """Refuse options of a comparison that its rows without a flush would not follow.

    They are searched on the linear placement, and recompute nothing.

    Raises:
        SynthError: one is given.
    """
    has_linear = any(word(name) in (AUTO, "linear") for name in placements)
    refused = {
        f"§placement {', '.join(placements)}": (
            not has_linear,
            "such a row is on the linear placement: give linear too, or take synth solve",
        ),
        f"§recompute {recompute}": (
            word(recompute or "none") != "none",
            "such a row recomputes nothing: give none",
        ),
    }
    for name in versions:
        refuse_beside(f"§versions {name}", refused)
