"""The zero-bubble greedy within given caps (Qi et al. 2023, arXiv 2401.10241, section 3.1).

ZB-1p and ZB-2p are this at the limits that the paper measures.
"""

from synth.errors import SynthError
from synth.families.buffers import patient
from synth.families.family import Family, Programs, Setting
from synth.families.zb_greedy import greedy
from synth.schedule.lower import lower
from synth.schedule.memory import peak_bytes
from synth.schedule.model import Schedule

_ATTEMPTS = 6


def make(setting: Setting) -> Programs:
    """Give the greedy what static bytes leave of the caps, less what its schedule then exceeds.

    The greedy counts what lies between F and W; sends, receives and what ops need while they
    run follow from its schedule, and are taken off its limits for the next attempt.
    """
    if setting.caps_bytes is None:
        raise SynthError("zb-limit is made to caps, given none; give them, or take zb-1p or zb-2p")
    stages = setting.costs.stages  # one a rank
    limits = [
        cap - stage.static_bytes for cap, stage in zip(setting.caps_bytes, stages, strict=True)
    ]
    for _ in range(_ATTEMPTS):
        programs = greedy("zb-limit", setting, limits)
        made = Schedule.linear("zb-limit", setting.num_micro_batches, programs)
        peaks = peak_bytes(lower(made, setting.costs))
        over = [max(0, peak - cap) for peak, cap in zip(peaks, setting.caps_bytes, strict=True)]
        if not any(over):
            return programs
        limits = [limit - excess for limit, excess in zip(limits, over, strict=True)]
    raise SynthError(
        f"zb-limit found no schedule within the caps in {_ATTEMPTS} attempts; rank "
        f"{over.index(max(over))} still needs {max(over)} bytes more"
    )


FAMILY = Family(
    "zb-limit",
    "Qi et al. 2023, arXiv 2401.10241, section 3.1",
    make,
    timed=True,
    buffering=patient,
)
