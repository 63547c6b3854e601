"""MixPipe: two directions that inject as many micro-batches as is wanted (Zhang et al. 2023, DAC).

Between Chimera, whose directions inject D / 2 each, and more: `inject` is the number K that each
direction has in flight. The schedule is mixed: every rank runs F and B by turns, and the two
directions by turns in each. The paper itself was not at hand; the rule was made from its abstract
and from what BitPipe's appendix B (arXiv 2410.19367) prints of it, (3D − 2) / 2 activations with K
as large as is useful. That is what this rule holds, with K = 3D / 2 − 2: so many forwards a first
rank can run until its first B, beside what it does for the other direction.
"""

from synth.families._lib.buffers import patient
from synth.families._lib.early import Alternation, First, RunAheadRule, list_schedule
from synth.families._lib.family import Family, Programs, Setting
from synth.families._lib.options import Count


def make(setting: Setting) -> Programs:
    """By default K = 3D / 2 − 2, beyond which nothing gets faster.

    B = 2F, from 2D micro-batches on: 1.5 (D − 2) units of F of bubble, the least on this placement.
    Smaller K hold fewer activations and wait more; with one copy's share all are in flight.
    """
    rule = RunAheadRule(
        in_flight=setting.count("inject") or max(1, 3 * setting.num_ranks // 2 - 2),
        most_held=2 * setting.num_micro_batches,
        in_turn=True,
        forwards=First.LOWEST,
        backwards=First.HIGHEST,
        forward_turns=Alternation.COPIES,
        backward_turns=Alternation.COPIES,
    )
    listed = list_schedule(setting, rule)
    if listed is None:
        raise RuntimeError("ranks wait for room although everything may be in flight")
    return listed.programs


FAMILY = Family(
    "mixpipe",
    "Zhang et al. 2023, DAC; after arXiv 2410.19367, appendix B",
    make,
    "bidirectional",
    options=(Count("inject", 0),),
    buffering=patient,
)
