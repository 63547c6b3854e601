"""Named placements: which rank holds which stage, for each pattern of the literature.

linear            0 1 2 3                          one stage per rank
looped:2          0 1 2 3 0 1 2 3                  interleaved (arXiv 2104.04473)
v                 0 1 2 3 3 2 1 0                  zero-bubble V (arXiv 2405.15362)
wave:2            0 1 2 3 3 2 1 0 0 1 2 3 3 2 1 0  Hanayo (arXiv 2308.15762); v is wave:1
bidirectional     linear, and a second copy of the stages the other way round (Chimera)
bidirectional-v   v and its mirror (BitPipe); looped:2 and wave:2 have mirrors too
all-stages:2      all 2 D stages on rank 0, a copy of them on rank 1, and so on (data parallelism);
                  `replicated:2` in earlier versions
dispatched:2-3    2 D stages on the ranks in turn, in forwards 3 of them together (RoundPipe)
round-robin:2-1   stage 0 on ranks 0 and 1, stage 1 on rank 2, which take micro-batches in turn; one
                  number is for every stage (PipeDream's 1F1B-RR)
"""

import re
from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import gcd, lcm

from synth.errors import SynthError
from synth.profile.links import MOST_COPIES, MOST_RANKS
from synth.schedule.model import Placement

_MIRROR = "bidirectional"
_ALL_STAGES = "all-stages"
_OLD_NAME = "replicated"  # of `_ALL_STAGES`, in earlier versions
_NAMES = (
    "linear, looped:N, v, wave:N, bidirectional, bidirectional-v, bidirectional-looped:N, "
    "all-stages:N, round-robin:N-N-…, dispatched:N-N"
)
_USUAL = ("linear", "looped:2", "v", "looped:3", "looped:4", "wave:2", _MIRROR, f"{_MIRROR}-v")


def placement(name: str, num_ranks: int) -> Placement:
    """The named placement on `num_ranks` ranks.

    Raises:
        SynthError: the name is unknown, or the number of ranks or rounds is out of range.
    """
    if num_ranks < 1:
        raise SynthError(f"a placement needs at least one rank, given {num_ranks}")
    if num_ranks > MOST_RANKS:
        raise SynthError(f"{num_ranks:,} ranks are asked for; give at most {MOST_RANKS:,}")
    if match := re.fullmatch(rf"{_ALL_STAGES}(?::([1-9]\d{{0,3}}))?", current_placement_name(name)):
        return everywhere(num_ranks, int(match[1] or 1) * num_ranks)
    if match := re.fullmatch(r"round-robin:([1-9]\d{0,4}(?:-[1-9]\d{0,4})*)", name):
        return _counted(name, [int(count) for count in match[1].split("-")], num_ranks)
    if match := re.fullmatch(r"dispatched:([1-9]\d{0,3})-([1-9]\d{0,3})", name):
        return dispatched(num_ranks, int(match[1]) * num_ranks, int(match[2]))
    base, mirror = name, False
    if name == _MIRROR or name.startswith(f"{_MIRROR}-"):
        base, mirror = name.removeprefix(_MIRROR).removeprefix("-") or "linear", True
    one_way = _one_way(name, base, num_ranks)
    return mirrored(one_way) if mirror else one_way


def usual(num_ranks: int) -> dict[str, Placement]:
    """The placements to choose from, by name: up to four stages per rank, one or two copies.

    Each placement occurs once.
    """
    found: dict[str, Placement] = {}
    for name in _USUAL:
        where = placement(name, num_ranks)
        if (num_ranks > 1 and where not in found.values()) or not found:
            found[name] = where
    return found


def current_placement_name(text: str) -> str:
    """Replace the name of earlier versions in a text that names a placement."""
    return text.replace(_OLD_NAME, _ALL_STAGES)


def is_all_stages(name: str) -> bool:
    """True if the placement of a name puts all stages on each rank."""
    return current_placement_name(name).startswith(_ALL_STAGES)


def looped(num_ranks: int, rounds: int) -> Placement:
    """Place stage s on rank s mod D, so that every round passes the ranks in order."""
    return Placement((tuple(range(num_ranks)) * rounds,))


def wave(num_ranks: int, waves: int = 1) -> Placement:
    """Place stages down the ranks and up again.

    The two stages at each turn share a rank, so that nothing is sent between them.
    """
    down = tuple(range(num_ranks))
    return Placement(((down + down[::-1]) * waves,))


def everywhere(num_ranks: int, num_stages: int) -> Placement:
    """Place a copy of all stages on every rank."""
    return Placement(tuple((rank,) * num_stages for rank in range(num_ranks)))


def round_robin(replicas: Sequence[int]) -> Placement:
    """Place stage s on the next `replicas[s]` ranks, which take micro-batches in turn.

    Raises:
        SynthError: there are more copies than ops can name; see `taking_turns`.
    """
    return taking_turns([range(*ends) for ends in pairwise(accumulate(replicas, initial=0))])


def taking_turns(holders: Sequence[Sequence[int]]) -> Placement:
    """Place stage s on the ranks `holders[s]`, which take micro-batches in turn.

    Copy c of C has the micro-batches c, c + C, c + 2 C, …; C is the least common multiple of the
    numbers of ranks.

    Raises:
        SynthError: there are more copies than ops can name.
    """
    counts = [len(ranks) for ranks in holders]
    num_copies = lcm(*counts)
    if num_copies > MOST_COPIES:
        raise SynthError(
            f"stages on {'-'.join(map(str, counts))} ranks, which take micro-batches in turn, have "
            f"{num_copies:,} copies, the least common multiple of these numbers; give numbers with "
            f"one of at most {MOST_COPIES:,}"
        )
    copies = range(num_copies)
    return Placement(tuple(tuple(ranks[c % len(ranks)] for ranks in holders) for c in copies))


def dispatched(num_ranks: int, num_stages: int, together: int) -> Placement:
    """Place stages on the ranks in turn, first their forwards and then their backwards (RoundPipe).

    A round of micro-batches takes these slots, and the next slot is always on the next rank:
    forwards of `together` stages each, or one fewer in the first slots, up to the last stage, which
    runs forwards and backwards in one slot, then backwards of a stage each. Copy c of C has the
    rounds c, c + C, c + 2 C, …; after C rounds the first slot is back on the first rank.
    """
    last = num_stages - 1
    slot_of_last = -(-last // together)
    num_slots = slot_of_last + num_stages
    fewest, num_larger = divmod(last, max(1, slot_of_last))
    sizes = [fewest + (slot >= slot_of_last - num_larger) for slot in range(slot_of_last)]
    forward = [slot for slot, size in enumerate((*sizes, 1)) for _ in range(size)]
    backward = [slot_of_last + last - stage for stage in range(num_stages)]
    firsts = [num_slots * copy for copy in range(num_ranks // gcd(num_ranks, num_slots))]
    ranks, backward_ranks = (
        tuple(tuple((first + slot) % num_ranks for slot in slots) for first in firsts)
        for slots in (forward, backward)
    )
    return Placement(ranks, backward_ranks)


def mirrored(one_way: Placement) -> Placement:
    """Add a second copy of all stages, with rank r and rank D − 1 − r exchanged."""
    last = one_way.num_ranks - 1
    return Placement(one_way.ranks + tuple(tuple(last - r for r in way) for way in one_way.ranks))


def _counted(name: str, replicas: list[int], num_ranks: int) -> Placement:
    if len(replicas) == 1 and num_ranks % replicas[0] == 0:
        replicas *= num_ranks // replicas[0]
    if sum(replicas) != num_ranks:
        needed = f"multiples of {replicas[0]}" if len(replicas) == 1 else str(sum(replicas))
        raise SynthError(f"placement {name!r} is for {needed} ranks, given {num_ranks}")
    return round_robin(replicas)


def _one_way(given: str, base: str, num_ranks: int) -> Placement:
    match = re.fullmatch(r"(linear|v|looped|wave)(?::(\d{1,4}))?", base)
    if match is None or (match[2] is None) != (match[1] in ("linear", "v")):
        raise SynthError(f"placement {given!r} is unknown; known: {_NAMES}")
    rounds = int(match[2] or 1)
    if rounds < 1:
        raise SynthError(f"placement {given!r} has no round; give at least 1")
    if match[1] == "linear":
        return Placement.linear(num_ranks)
    return looped(num_ranks, rounds) if match[1] == "looped" else wave(num_ranks, rounds)
