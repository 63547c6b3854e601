"""ZB-H2: no bubble for F = B = W, at 2p − 1 micro-batches (Qi et al. 2023, arXiv 2401.10241)."""

from synth.families._lib.family import Family, Programs, Setting
from synth.families._lib.zb_handcrafted import program


def make(setting: Setting) -> Programs:
    """Rank r warms up with 2(p − r) − 1 forwards and holds back 2r weight gradients."""
    p, m = setting.num_ranks, setting.num_micro_batches
    return [program(s, 2 * (p - s) - 1, 2 * s, m) for s in range(p)]


FAMILY = Family("zb-h2", "Qi et al. 2023, arXiv 2401.10241, section 2.3", make)
