"""The zero-bubble greedy within given caps (Qi et al. 2023, arXiv 2401.10241, section 3.1).

ZB-1p and ZB-2p are this at the limits that the paper measures.
"""

from synth.errors import SynthError
from synth.families.buffers import patient
from synth.families.capped import ATTEMPTS, attempts
from synth.families.family import Family, Programs, Setting
from synth.families.zb_greedy import greedy


def make(setting: Setting) -> Programs:
    """The greedy at what static bytes leave of the caps, less what its schedule then exceeds."""
    if setting.caps_bytes is None:
        raise SynthError("zb-limit is made to caps, given none; give them, or take zb-1p or zb-2p")
    *_, last = attempts(setting, lambda limits: greedy("zb-limit", setting, limits))
    if not last.fits:
        over = last.over_bytes
        raise SynthError(
            f"zb-limit found no schedule within the caps in {ATTEMPTS} attempts; rank "
            f"{over.index(max(over))} still needs {max(over)} bytes more"
        )
    return last.programs


FAMILY = Family(
    "zb-limit",
    "Qi et al. 2023, arXiv 2401.10241, section 3.1",
    make,
    timed=True,
    buffering=patient,
)
