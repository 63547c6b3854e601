"""ZB-1p: the zero-bubble greedy within 1F1B's memory (Qi et al. 2023, arXiv 2401.10241)."""

from synth.families._lib.buffering_choice import patient
from synth.families._lib.family import Family, Programs, Setting
from synth.families._lib.zb_greedy import greedy, micro_batches_bytes


def make(setting: Setting) -> Programs:
    """Each rank holds at most the bytes of p micro-batches, as the first rank of 1F1B does."""
    return greedy("zb-1p", setting, micro_batches_bytes(setting, setting.num_ranks))


FAMILY = Family(
    "zb-1p", "Qi et al. 2023, arXiv 2401.10241, section 3.1", make, timed=True, buffering=patient
)
