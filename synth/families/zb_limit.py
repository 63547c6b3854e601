"""The zero-bubble greedy within memory limits (Qi et al. 2023, arXiv 2401.10241, section 3.1).

ZB-1p and ZB-2p are this greedy at the limits that the paper measures.
"""

from collections.abc import Sequence
from dataclasses import replace

from synth.errors import SynthError
from synth.families._lib.buffering_choice import patient
from synth.families._lib.family import Family, Programs, Setting
from synth.families._lib.fit_to_caps import left_bytes, within_caps
from synth.families._lib.zb_greedy import greedy

_MOST_ATTEMPTS = 6


def make(setting: Setting) -> Programs:
    """Run the greedy within the memory that static bytes leave, less the excess of its schedule."""
    if setting.caps_bytes is None:
        raise SynthError(
            "zb-limit needs memory limits, given none; give them, or take zb-1p or zb-2p"
        )

    # An order that exceeds the limits says what to try next, however long it is.
    in_any_case = replace(setting, below_us=None)

    def make_at(limits_bytes: Sequence[int]) -> Programs:
        return greedy("zb-limit", in_any_case, limits_bytes)

    least = [0] * setting.num_ranks  # the greedy reports its minimum itself
    tried = list(within_caps(setting, make_at, left_bytes(setting), least, _MOST_ATTEMPTS))
    over = tried[-1].over_bytes
    if any(over):
        raise SynthError(
            f"zb-limit found no schedule within the memory limits in {len(tried)} attempts; rank "
            f"{over.index(max(over))} still needs {max(over)} bytes more"
        )
    return tried[-1].programs


FAMILY = Family(
    "zb-limit",
    "Qi et al. 2023, arXiv 2401.10241, section 3.1",
    make,
    timed=True,
    reads_limits=True,
    buffering=patient,
)
