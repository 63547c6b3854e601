"""List scheduling that minds memory: an event-driven greedy with several rules, and their search.

A rule decides what a chunk does when its rank is free: how many micro-batches it may have under
way, whether F or B goes first, and when a W fills a gap. The best rules differ from chunk to chunk,
so a local search changes them one at a time. What is returned are orders; only an exact simulation
of a verified schedule says what they are worth.
"""

import heapq
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from synth.kinds import OpKind
from synth.objective import Objective, Spans
from synth.solve.instance.completion_reserve import Chain
from synth.solve.instance.instance import BW, STEP, B, F, View, W
from synth.solve.instance.timing import Programs, number

_NEVER = 1 << 60

# Which of a chunk's counts (F, B, W) an op raises.
_COUNTED = {F: (0,), B: (1,), W: (2,), BW: (1, 2)}


class Rule(NamedTuple):
    """How one chunk decides.

    Attributes:
        limit: the most micro-batches between their F and their B.
        forward_first: F before B where both can run.
        patience: a W runs when nothing else can for at least this share of its time.
        backlog: the most micro-batches between their B and their W, before W goes first.
        fused: BW instead of B. Where B does not fit and BW does, BW runs in any case.
        eager: where chunks of a rank compete, this one's micro-batches go before older ones.
    """

    limit: int
    forward_first: bool
    patience: float
    backlog: int
    fused: bool = False
    eager: bool = False


@dataclass(frozen=True)
class Draft:
    """Orders of (chunk, kind), one list per rank, and what they take if no transfer has to wait."""

    orders: tuple[tuple[tuple[int, OpKind], ...], ...]
    value_us: int

    def programs(self, view: View) -> Programs:
        """Number the ops: per kind, micro-batches run in order."""
        return tuple(number(view, order) for order in self.orders)


class _Option(NamedTuple):
    """An op that could start now; smaller goes first."""

    key: tuple[int, ...]
    chunk: int
    kind: OpKind


class Builder:
    """The greedy for one view; what every draft needs is computed once."""

    def __init__(self, view: View, objective: Objective) -> None:
        self.view, self.objective = view, objective
        self.chains = [
            [Chain(view, chunks) for chunks in view.chains(rank)] for rank in range(view.num_ranks)
        ]

    def build(self, rules: Sequence[Rule]) -> Draft | None:
        """Run the greedy; None if it cannot go on, which tight and odd memory can cause."""
        return _Greedy(self, rules).run()


class _Greedy:
    """All ranks in one event loop; `arrivals` are known as soon as their op has started."""

    def __init__(self, builder: Builder, rules: Sequence[Rule]) -> None:
        self.builder, self.rules = builder, rules
        self.view = view = builder.view
        self.counts = [[0, 0, 0] for _ in view.chunks]
        self.level = [0] * view.num_ranks
        self.free_us = [0] * view.num_ranks
        self.start_us = [_NEVER] * view.num_ranks
        self.orders: list[list[tuple[int, OpKind]]] = [[] for _ in view.room_bytes]
        self.acts: list[list[int]] = [[] for _ in view.chunks]
        self.grads: list[list[int]] = [[] for _ in view.chunks]
        self.link_free_us: dict[tuple[int, int], int] = {}
        self.events: list[tuple[int, int]] = []
        for index, chunk in enumerate(view.chunks):
            if chunk.above is None:
                self.acts[index] = [0] * chunk.num_micro_batches
                self.events.append((0, chunk.rank))

    def run(self) -> Draft | None:
        while self.events:
            now, rank = heapq.heappop(self.events)
            if self.free_us[rank] <= now:
                self._act(rank, now)
        counts = zip(self.counts, self.view.chunks, strict=True)
        if any(weights < chunk.num_micro_batches for (_, _, weights), chunk in counts):
            return None
        ends = []
        for rank, held in enumerate(self.view.held):
            steps_us = sum(self.view[chunk].duration_us[STEP] for chunk in held)
            ends.append(self.free_us[rank] + steps_us)
        spans = Spans.of_ranks(zip(self.start_us, ends, strict=True))
        value_us = self.builder.objective.value_us(spans)
        return Draft(tuple(tuple(order) for order in self.orders), value_us)

    def _act(self, rank: int, now: int) -> None:
        choice, wake_us = self._choose(rank, now)
        if choice is not None:
            self._start(*choice, now)
        elif wake_us < _NEVER:
            heapq.heappush(self.events, (wake_us, rank))

    def _choose(self, rank: int, now: int) -> tuple[tuple[int, OpKind] | None, int]:
        """What to start now, or when to look again."""
        held = self.view.held[rank]
        filler = self._weight(held)
        if filler is not None:
            _, b, w = self.counts[filler]
            if b - w > self.rules[filler].backlog:
                return (filler, W), now
        options: list[_Option] = []
        next_us, wake_us, blocked = _NEVER, _NEVER, False
        for chunk in held:
            for option, at, wanted in self._options(chunk):
                if at > now:
                    wake_us = min(wake_us, at)
                    next_us = min(next_us, at) if option is not None else next_us
                elif option is not None:
                    options.append(option)
                else:
                    blocked |= wanted
        if options:
            best = min(options)
            return (best.chunk, best.kind), now
        if filler is not None:
            patience_us = self.rules[filler].patience * self.view[filler].duration_us[W]
            if blocked or next_us - now >= patience_us:
                return (filler, W), now
        return None, wake_us

    def _weight(self, held: Sequence[int]) -> int | None:
        """The chunk with the most W's waiting of which one fits."""
        best, most = None, 0
        for chunk in held:
            _, b, w = self.counts[chunk]
            if b - w > most and self._allows(chunk, W, 0):
                best, most = chunk, b - w
        return best

    def _options(self, chunk: int) -> Iterator[tuple[_Option | None, int, bool]]:
        """The next F and B: what, none if it does not fit; when; and whether it was allowed to."""
        rule, (f, b, _) = self.rules[chunk], self.counts[chunk]
        depth = self.view[chunk].stage
        if f < len(self.acts[chunk]):
            allowed = f - b < rule.limit
            fits = allowed and self._fits(chunk, F)
            key = (not rule.forward_first, -depth if rule.eager else f, -depth)
            yield _Option(key, chunk, F) if fits else None, self.acts[chunk][f], allowed
        if b < min(f, len(self.grads[chunk])):
            kind = self._backward(chunk, rule)
            key = (rule.forward_first, depth if rule.eager else b, depth)
            yield _Option(key, chunk, kind) if kind else None, self.grads[chunk][b], True

    def _backward(self, chunk: int, rule: Rule) -> OpKind | None:
        """B or BW, whichever the rule prefers of what fits."""
        can_fuse = self._fits(chunk, BW)
        if rule.fused and can_fuse:
            return BW
        effect = self.view[chunk].effect_bytes[B]
        if self._allows(chunk, W, effect) and self._fits(chunk, B):
            return B
        return BW if can_fuse else None

    def _allows(self, chunk: int, kind: OpKind, above_bytes: int) -> bool:
        level = self.level[self.view[chunk].rank] + above_bytes
        return self.view.allows(chunk, kind, level)

    def _fits(self, chunk: int, kind: OpKind) -> bool:
        """Whether an op fits and leaves a way out: W's first, then the oldest micro-batches."""
        view, counts = self.view, self.counts
        rank = view[chunk].rank
        room = view.room_bytes[rank]
        if room is None:
            return True
        if not self._allows(chunk, kind, 0):
            return False
        level = self.level[rank] + view[chunk].effect_bytes[kind]
        for other in view.held[rank]:
            _, b, w = counts[other]
            if b > w:
                if level + view[other].need_bytes[W] > room:
                    return False
                level += (b - w) * view[other].effect_bytes[W]
        places = _COUNTED[kind]
        for place in places:
            counts[chunk][place] += 1
        if kind == B:
            level += view[chunk].effect_bytes[W]
        rests = [chain.rest_of_oldest(counts) for chain in self.builder.chains[rank]]
        for place in places:
            counts[chunk][place] -= 1
        return level + max(rests) <= room

    def _start(self, index: int, kind: OpKind, now: int) -> None:
        chunk = self.view[index]
        rank, end = chunk.rank, now + chunk.duration_us[kind]
        self.orders[rank].append((index, kind))
        self.start_us[rank] = min(self.start_us[rank], now)
        self.free_us[rank] = end
        self.level[rank] += chunk.effect_bytes[kind]
        for place in _COUNTED[kind]:
            self.counts[index][place] += 1
        heapq.heappush(self.events, (end, rank))
        if kind == F and chunk.below is None:
            self.grads[index].append(end)
        elif kind == F and chunk.below is not None:
            self._deliver(self.acts, index, chunk.below, end, chunk.down_us)
        elif kind in (B, BW) and chunk.above is not None:
            up_us = self.view[chunk.above].up_us
            self._deliver(self.grads, index, chunk.above, end, up_us)

    def _deliver(
        self, inboxes: list[list[int]], source: int, target: int, end: int, lag_us: int
    ) -> None:
        """Transfers on one link take turns."""
        link = (self.view[source].rank, self.view[target].rank)
        if link[0] != link[1]:
            end = max(end, self.link_free_us.get(link, 0)) + lag_us
            self.link_free_us[link] = end
        inboxes[target].append(end)
        heapq.heappush(self.events, (end, link[1]))


def variants(view: View) -> Iterator[list[Rule]]:
    """The uniform rules to start from: 1F1B's limits, zero bubble's, and as memory allows.

    Those that are best most often come first.
    """
    size = 1 + max(chunk.stage for chunk in view.chunks)
    most = max(chunk.num_micro_batches for chunk in view.chunks)
    works = [sum(view[c].work_us for c in held) for held in view.held]
    away = [1 + -(-trip // max(1, *works)) for trip in view.round_trip_us]
    stages = [chunk.stage for chunk in view.chunks]
    limits = [
        [size - s for s in stages],
        [most] * len(view),
        [2 * (size - s) - 1 for s in stages],
        [size] * len(view),
        away,
        [a + 1 for a in away],
    ]
    choices = (False, True) if len(view) > view.num_ranks else (False,)
    for patience in (1.0, 0.5, 0.0):
        for backlog in (most, size, 1, 0):
            for forward_first in (True, False):
                for eager in choices:
                    for limit in limits:
                        rule = Rule(1, forward_first, patience, backlog, False, eager)
                        yield _limited(view, rule, limit)
        for limit in limits:
            yield _limited(view, Rule(1, patience > 0, 0.0, 0, fused=True), limit)


def _limited(view: View, rule: Rule, limits: Sequence[int]) -> list[Rule]:
    return [
        rule._replace(limit=min(limit, chunk.num_micro_batches))
        for limit, chunk in zip(limits, view.chunks, strict=True)
    ]


def search(
    view: View,
    objective: Objective,
    max_ops: int,
    seed: int,
    should_stop: Callable[[], bool] = lambda: False,
) -> list[tuple[Draft, list[Rule]]]:
    """Try all variants, then change the best one chunk by chunk; return drafts, best first.

    Args:
        max_ops: the effort, in ops placed: a number of steps and not a time, so that the same
            input gives the same drafts.
        should_stop: asked after each draft, where there is less time than that.
    """
    budget = max(12, max_ops // view.num_ops)
    found: list[tuple[Draft, list[Rule]]] = []
    rng, builder = random.Random(seed), Builder(view, objective)
    starts = list(variants(view))[: max(6, budget // 3)]
    for rules in starts:
        draft = builder.build(rules)
        if draft is not None:
            found.append((draft, rules))
        if should_stop():
            break
    found.sort(key=lambda pair: pair[0].value_us)
    if found:
        found[:0] = _climb(builder, found[0], budget - len(starts), rng, should_stop)
    return found


def _climb(
    builder: Builder,
    best: tuple[Draft, list[Rule]],
    steps: int,
    rng: random.Random,
    should_stop: Callable[[], bool],
) -> list[tuple[Draft, list[Rule]]]:
    """Keep every change of one or two chunks' rules that is not worse; best first."""
    improved, view = [], builder.view
    for _ in range(steps):
        if should_stop():
            break
        rules = list(best[1])
        for chunk in rng.sample(range(len(view)), min(len(view), rng.choice((1, 1, 2)))):
            rules[chunk] = _change(rules[chunk], view[chunk].num_micro_batches, rng)
        draft = builder.build(rules)
        if draft is not None and draft.value_us <= best[0].value_us:
            if draft.value_us < best[0].value_us:
                improved.append((draft, rules))
            best = (draft, rules)
    return improved[::-1]


def _change(rule: Rule, most: int, rng: random.Random) -> Rule:
    match rng.randrange(6):
        case 0:
            return rule._replace(limit=min(most, max(1, rule.limit + rng.choice((-2, -1, 1, 2)))))
        case 1:
            return rule._replace(forward_first=not rule.forward_first)
        case 2:
            return rule._replace(patience=rng.choice((0.0, 0.25, 0.5, 0.75, 1.0)))
        case 3:
            return rule._replace(fused=not rule.fused)
        case 4:
            return rule._replace(eager=not rule.eager)
        case _:
            return rule._replace(backlog=min(most, rng.randrange(0, 5) ** 2))
