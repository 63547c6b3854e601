"""RoundPipe: stages dispatched to stateless ranks in turn (Luo et al. 2026, arXiv 2604.27085).

The host's memory keeps the state of all stages, and a rank the weights of the stage that runs and
of the next `ahead` ones. A round is as many micro-batches as there are ranks. It goes through slots
of about equal time, each on the rank after the one before:

    rank 0   | F of stages 0–2 | BW of stage 6     | R, BW of stage 3 | R, BW of stage 0 |
    rank 1     | F of stages 3–5 | R, BW of stage 5 | R, BW of stage 2 | …
    rank 2                         | R, BW of stage 4 | R, BW of stage 1 | …

A forward takes a third of the time of recomputation and backward, so forwards have a partition of
their own: `forward` stages run together, in the first slots perhaps one fewer. The last stage's
backward follows its forward at once. The next round goes on with the next rank, so that ranks are
idle only before the first slots and after the last ones. As slots are not bound to ranks, their
number need not be a multiple of that of ranks.

The inputs of stages wait in the host's memory for R, which runs on another rank than F, unless it
happens to be the same one. Gradients leave after each backward slot, and are added up by the host.
STEP runs there after the last backward; the paper's optimizer, which overlaps with the next
iteration and uses weights that are one update old, is not modelled. Neither are partitions in which
a forward divides a backward stage, and the choice of a round's first rank in the authors'
simulator, which is the one that is free first.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from synth.errors import SynthError
from synth.families._lib.family import Family, Programs, Setting
from synth.families._lib.options import Count, rounds
from synth.op_kinds import OpKind
from synth.schedule.ops import Op
from synth.schedule.weight_flow import Route, WeightFlow

F, R, BW = OpKind.F, OpKind.R, OpKind.BW
UNSHARD, RESHARD, REDUCE = OpKind.UNSHARD, OpKind.RESHARD, OpKind.REDUCE_GRAD

_FORWARD = Count("forward", 3)
_AHEAD = Count("ahead", 1, least=0)


class _Slot(NamedTuple):
    """The ops of a round on a rank, the visits whose weights they read, and what follows them."""

    visits: list[Op]
    ops: list[Op]
    reductions: list[Op]


def make(setting: Setting) -> Programs:
    """Rounds one after another, whose slots go to the ranks in turn.

    Raises:
        SynthError: there is one rank, the number of micro-batches is no multiple of that of ranks,
            or the profile has no link to the host.
    """
    num_ranks, m = setting.num_ranks, setting.num_micro_batches
    if setting.costs.links.host is None:
        raise SynthError(
            "roundpipe needs a link to the host's memory, and the profile has none; add "
            '`"host": {"latency_us": …, "bandwidth_bytes_per_s": …}` to its links'
        )
    if num_ranks < 2 or m % num_ranks:
        raise SynthError(
            f"roundpipe needs at least 2 ranks and a multiple of their number of micro-batches, "
            f"given {num_ranks} and {m}"
        )
    slots: list[list[_Slot]] = [[] for _ in range(num_ranks)]
    for number in range(m // num_ranks):
        for rank, slot in _round(setting, number):
            slots[rank].append(slot)
    return [list(_program(of_rank, setting.count("ahead"))) for of_rank in slots]


def _round(setting: Setting, number: int) -> Iterator[tuple[int, _Slot]]:
    """The slots of a round and their ranks, in order."""
    placement, last = setting.placement, setting.num_stages - 1
    repeat, copy = divmod(number, len(placement.ranks))
    batch = range(number * setting.num_ranks, (number + 1) * setting.num_ranks)
    for rank, group in groupby(range(last), placement.ranks[copy].__getitem__):
        stages = list(group)
        ops = [Op(F, s, j, copy) for j in batch for s in stages]
        visits = [Op(UNSHARD, s, 2 * repeat, copy) for s in stages]
        yield rank, _Slot(visits, ops, [])
    for s in reversed(range(last + 1)):
        before = F if s == last else R
        ops = [Op(kind, s, j, copy) for j in batch for kind in (before, BW)]
        visit = Op(UNSHARD, s, 2 * repeat + (s < last), copy)
        slot = _Slot([visit], ops, [Op(REDUCE, s, repeat, copy)])
        yield placement.of_backwards[copy][s], slot


def _program(slots: Sequence[_Slot], ahead: int) -> Iterator[Op]:
    """The slots of a rank; weights of a stage copy come anew only once its visit before is over."""
    opened = 0
    for index, slot in enumerate(slots):
        here = {visit[1::2] for visit in slot.visits}
        while opened < len(slots) and opened <= index + ahead:
            coming = {visit[1::2] for visit in slots[opened].visits}
            if opened > index and here & coming:
                break
            here |= coming
            yield from slots[opened].visits
            opened += 1
        yield from slot.ops
        yield from (visit._replace(kind=RESHARD) for visit in slot.visits)
        yield from slot.reductions


def weight_flow(setting: Setting) -> WeightFlow:
    """All stages are in the host's memory; the ranks that run their first backwards update them."""
    homes = tuple((rank,) for rank in setting.placement.of_backwards[0])
    return WeightFlow(homes, weights=Route.HOST, gradients=Route.HOST)


FAMILY = Family(
    "roundpipe",
    "Luo et al. 2026, arXiv 2604.27085",
    make,
    "dispatched:{rounds}-{forward}",
    options=(rounds(2), _FORWARD, _AHEAD),
    weights=weight_flow,
)
