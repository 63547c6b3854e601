"""Chimera: two 1F1B pipelines in opposite directions (Li and Hoefler 2021, arXiv 2107.06925)."""

from synth.families.family import Family, Programs, Setting
from synth.families.units import check_even, concatenated


def make(setting: Setting) -> Programs:
    """Each copy takes half of D micro-batches; units of D by direct concatenation.

    F = B: D − 2 of bubble however many units. B = 2F: the printed (D − 2) / (1.5 N + D − 2) for one
    unit; each further one brings D − 2 units of F more, since B's and not F's have to fit between.
    The paper's remedies (forward doubling, backward halving) are not here.
    """
    check_even("chimera", setting)
    return concatenated(setting)


FAMILY = Family(
    "chimera", "Li and Hoefler 2021, arXiv 2107.06925, section 3", make, "bidirectional"
)
