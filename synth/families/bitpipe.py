"""BitPipe: two V-shaped interleaved pipelines in opposite directions (arXiv 2410.19367).

The number of rounds is that of waves, two stages each, of a copy; the paper's default is one, the
V, and its appendix A generalises. `early` is the early forwarding of its appendix B; `late-sync`
the ablation "w/o E" of its Table 5, without eager gradient synchronization.
"""

from collections.abc import Iterator
from functools import lru_cache
from itertools import product

from synth.families._lib.buffering_choice import patient
from synth.families._lib.concatenated_units import check_even, concatenated
from synth.families._lib.early_forwarding import (
    Alternation,
    First,
    RulePrograms,
    RunAheadRule,
    list_schedule,
)
from synth.families._lib.family import Family, Programs, Setting
from synth.families._lib.options import SYNC, ChoiceOption, rounds
from synth.schedule.model import Buffering, Placement, Schedule

# The most ops that all rules together list; larger schedules try fewer rules.
_MOST_LISTED_OPS = 80_000


def make(setting: Setting) -> Programs:
    """Each copy takes half of D micro-batches; units of D by direct concatenation.

    For F = B the bubble is D − 2 times F of one stage, for any number of units. For B = 2F it is 2
    (D − 2) for one unit, which is the printed (D − 2) / (3 N + D − 2). Each further unit adds D −
    2, so that the printed rate holds at N = D only. Early forwarding removes these at the cost of
    memory.
    """
    check_even("bitpipe", setting)
    is_early = setting.options["forwarding"] == "early"
    if not is_early or setting.num_micro_batches <= setting.num_ranks:
        return concatenated(setting)
    return _early(setting.placement, setting.num_micro_batches) or concatenated(setting)


@lru_cache(maxsize=1)
def _early(placement: Placement, num_micro_batches: int) -> Programs | None:
    """The fastest programs of several rules within the printed memory, (3D − 3) / 2; None: none.

    Times and memory limits do not matter, so the last ones are kept for the next of them.

    The paper gives the time, the memory (in micro-batches) and a drawing, but no rule. Its bubble,
    1.5 (D − 2) F of one stage on a V, is the least possible (see `chimera`). It cannot be reached
    with one unit of D micro-batches, which has nothing to run early and is left as it is.
    """
    setting = Setting.of(placement, num_micro_batches)
    num_ops = 2 * setting.num_stages * setting.num_micro_batches
    found: list[RulePrograms] = []
    for number, rule in enumerate(_rules(setting)):
        if found and number * num_ops > _MOST_LISTED_OPS:
            break
        shortest = min((listed.makespan for listed in found), default=None)
        listed = list_schedule(setting, rule, shortest)
        found += [listed] if listed else []
    best = min(found, key=lambda listed: (listed.makespan, listed.most_held), default=None)
    return best.programs if best else None


def _rules(setting: Setting) -> Iterator[RunAheadRule]:
    """Rules none of which is best for all numbers; those that often are come first."""
    num_ranks = setting.num_ranks
    waves = setting.num_stages // (2 * num_ranks)
    most_held = waves * max(3 * num_ranks - 3, 2 * num_ranks)
    in_flight = (num_ranks, num_ranks + 1)
    orders = (First.SECOND_HALF, First.HIGHEST, First.LOWEST)
    for turns, order, number in product(Alternation, orders, in_flight):
        yield RunAheadRule(number, most_held, False, First.HIGHEST, order, Alternation.NONE, turns)
    for turns in (Alternation.COPIES, Alternation.NONE):
        yield RunAheadRule(
            num_ranks, most_held, True, First.HIGHEST, First.LOWEST, Alternation.NONE, turns
        )


def buffering(setting: Setting, schedule: Schedule) -> Buffering:
    """The default buffering for units; ranks that run ahead would wait for buffers with it."""
    is_early = setting.options["forwarding"] == "early"
    return patient(setting, schedule) if is_early else schedule.buffering


FAMILY = Family(
    "bitpipe",
    "Wu et al. 2024, arXiv 2410.19367",
    make,
    "bidirectional-wave:{rounds}",
    options=(rounds(1), ChoiceOption("forwarding", ("direct", "early")), SYNC),
    buffering=buffering,
)
