"""ZB-2p: the zero-bubble greedy within twice 1F1B's memory (Qi et al. 2023, arXiv 2401.10241)."""

from synth.families._lib.buffering_choice import patient
from synth.families._lib.family import Family, Programs, Setting
from synth.families._lib.zb_greedy import greedy, micro_batches_bytes


def make(setting: Setting) -> Programs:
    """Each rank holds at most the bytes of 2p micro-batches."""
    return greedy("zb-2p", setting, micro_batches_bytes(setting, 2 * setting.num_ranks))


FAMILY = Family(
    "zb-2p", "Qi et al. 2023, arXiv 2401.10241, section 3.1", make, timed=True, buffering=patient
)
