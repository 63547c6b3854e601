"""ZB-H2: no bubble for F = B = W, at 2p − 1 micro-batches (Qi et al. 2023, arXiv 2401.10241)."""

from synth.families.family import Family, Programs
from synth.families.zero_bubble import program


def make(num_ranks: int, num_micro_batches: int) -> Programs:
    """Rank r warms up with 2(p − r) − 1 forwards and holds back 2r weight gradients."""
    return [program(s, 2 * (num_ranks - s) - 1, 2 * s, num_micro_batches) for s in range(num_ranks)]


FAMILY = Family("zb-h2", "Qi et al. 2023, arXiv 2401.10241, section 2.3", make)
