"""Reading `--partition`: layers per stage, or a keyword."""

from synth.errors import SynthError
from synth.options.keywords import word
from synth.schedule.model import Placement

# Names of a partition that is searched for, and of a balanced one.
SEARCH, SOUGHT = "auto", ("auto", "search")
EVEN = "even"


def read_partition(text: str, where: Placement) -> tuple[int, ...] | None:
    """Read the layers of each stage, `3,3,2`; None for `even` and for `auto`.

    Raises:
        SynthError: not one whole number above 0 per stage.
    """
    sizes = read_sizes(text)
    if sizes is not None and len(sizes) != where.num_stages:
        raise SynthError(f"§partition gives {len(sizes)} stages for {_needed_sizes(where)}")
    return sizes


def is_searched(partition: str) -> bool:
    """Return True if the partition is to be searched for."""
    return word(partition) in SOUGHT


def read_sizes(text: str) -> tuple[int, ...] | None:
    """Read the layers of any number of stages; None for a keyword.

    Raises:
        SynthError: something is no whole number above 0.
    """
    if word(text) == EVEN or is_searched(text):
        return None
    try:
        sizes = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise SynthError(
            f"§partition {text!r} is not understood; write auto, even, or layers per stage such "
            f"as 3,3,2"
        ) from None
    if min(sizes) < 1:
        stage = next(stage for stage, size in enumerate(sizes) if size < 1)
        raise SynthError(
            f"§partition gives stage {stage} {sizes[stage]} layers; every stage needs at least one"
        )
    return sizes


def _needed_sizes(where: Placement) -> str:
    if where == Placement.linear(where.num_ranks):
        return f"{where.num_ranks} ranks; give one size per rank"
    return (
        f"{where.num_ranks} ranks that hold {where.num_stages} stages in this placement; give one "
        f"size per stage"
    )
