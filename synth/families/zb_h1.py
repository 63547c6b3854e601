"""ZB-H1: 1F1B's memory, a third of its bubble (Qi et al. 2023, arXiv 2401.10241, figure 2)."""

from synth.families._lib.family import Family, Programs, Setting
from synth.families._lib.zb_handcrafted import program


def make(setting: Setting) -> Programs:
    """1F1B's warm-up; rank r holds back r weight gradients, which balances memory to p."""
    p, m = setting.num_ranks, setting.num_micro_batches
    return [program(s, p - s, s, m) for s in range(p)]


FAMILY = Family("zb-h1", "Qi et al. 2023, arXiv 2401.10241, section 2.2", make)
