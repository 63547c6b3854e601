"""Chimera: two 1F1B pipelines in opposite directions (Li and Hoefler 2021, arXiv 2107.06925)."""

from synth.families.bidirectional import concatenated
from synth.families.family import Family, Programs, Setting


def make(setting: Setting) -> Programs:
    """Each copy takes half of D micro-batches; units of D by direct concatenation."""
    return concatenated("chimera", setting)


FAMILY = Family("chimera", "Li and Hoefler 2021, arXiv 2107.06925", make, "bidirectional")
