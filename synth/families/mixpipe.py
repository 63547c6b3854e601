"""MixPipe: two directions that inject a chosen number of micro-batches (Zhang et al. 2023, DAC).

In Chimera each direction injects D / 2 micro-batches; here `inject` is the number K that each
direction has in flight. The schedule is mixed: every rank alternates between F and B, and within
each between the two directions. The paper itself was not available. The rule was made from its
abstract and from the figures in BitPipe's appendix B (arXiv 2410.19367): (3D − 2) / 2 activations
with the largest useful K. This rule holds as many with K = 3D / 2 − 2, which is the number of
forwards that a first rank can run before its first B, beside its work for the other direction.
"""

from synth.families._lib.buffering_choice import patient
from synth.families._lib.early_forwarding import Alternation, First, RunAheadRule, list_schedule
from synth.families._lib.family import Family, Programs, Setting
from synth.families._lib.options import Count


def make(setting: Setting) -> Programs:
    """By default K = 3D / 2 − 2; larger K are not faster.

    With B = 2F and at least 2D micro-batches the bubble is 1.5 (D − 2) times F, the least on this
    placement. Smaller K hold fewer activations and wait more; K equal to one copy's share puts all
    of them in flight.
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
