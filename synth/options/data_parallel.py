"""Checks of `--data-parallel` of `synth solve`: data-parallel pipelines, in one plan."""

from synth.errors import SynthError
from synth.options.arguments.solve import SolveArguments
from synth.options.conflicts import refuse_beside
from synth.profile.links import MOST_RANKS
from synth.schedule.model import Placement


def check_data_parallel(given: SolveArguments) -> None:
    """Refuse what is not for several data-parallel pipelines.

    Raises:
        SynthError: they have more ranks than a plan can name; or an option goes with one only.
    """
    if given.data_parallel == 1:
        return
    ranks = given.pipeline.ranks
    if ranks * given.data_parallel > MOST_RANKS:
        raise SynthError(
            f"§ranks {ranks} and §data_parallel {given.data_parallel} ask for "
            f"{ranks * given.data_parallel:,} ranks; give at most {MOST_RANKS:,}"
        )
    refused = {
        f"§weights {given.weights}": (
            given.weights == "ring",
            "with it each rank is data-parallel already; give gather or auto",
        ),
        "§target": (given.target is not None, "give a §mem_limit of a size"),
    }
    refuse_beside(f"§data_parallel {given.data_parallel}", refused)


def check_one_copy(where: Placement, num_pipelines: int) -> None:
    """Refuse copies of stages in data-parallel pipelines.

    Raises:
        SynthError: the placement has some.
    """
    if num_pipelines > 1 and len(where.ranks) > 1:
        raise SynthError(
            f"a placement with {len(where.ranks)} copies of each stage and §data_parallel "
            f"{num_pipelines} do not go together; take one with a single copy, such as linear or v"
        )
