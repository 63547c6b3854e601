"""ZB-H1: 1F1B's memory, a third of its bubble (Qi et al. 2023, arXiv 2401.10241, figure 2)."""

from synth.families.family import Family, Programs
from synth.families.zero_bubble import program


def make(num_ranks: int, num_micro_batches: int) -> Programs:
    """1F1B's warm-up; rank r holds back r weight gradients, which balances memory to p."""
    return [program(s, num_ranks - s, s, num_micro_batches) for s in range(num_ranks)]


FAMILY = Family("zb-h1", "Qi et al. 2023, arXiv 2401.10241, section 2.2", make)
