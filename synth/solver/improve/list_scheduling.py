"""Memory-aware list scheduling (Graham 1966) with a priority rule for each stage copy.

A rule says how many micro-batches a stage copy may have in flight, whether F or B goes first, and
when a W fills a gap. The best rules differ between copies, so a local search changes them one at a
time. It returns orders; only the exact simulation of a verified schedule gives their value.
"""

import heapq
import random
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol, TypeVar

from synth.objective import Objective, Spans
from synth.op_kinds import OpKind
from synth.solver.evaluate.evaluate import never
from synth.solver.improve.priority_rules import PriorityRule, change, variants
from synth.solver.instance.completion_reserve import CompletionReserve
from synth.solver.instance.instance import BW, STEP, B, F, Instance, W
from synth.solver.instance.timing import ScoredOrders
from synth.solver.tuning import LIST_SCHEDULING, RELEASE_DATES

_NEVER = 1 << 60

# By kind of op, the counts (F, B, W) of its stage copy that it raises.
_COUNTED = {F: (0,), B: (1,), W: (2,), BW: (1, 2)}


class _Option(NamedTuple):
    """An op that could start now; the smallest key goes first."""

    key: tuple[int, ...]
    copy: int
    kind: OpKind


class Valued(Protocol):
    """Orders with a value."""

    @property
    def value_us(self) -> int: ...


Built = TypeVar("Built", bound=Valued)


class ListBuilder(Protocol[Built]):
    """Makes list schedules of one instance, and gives their orders when they are asked for.

    Attributes:
        relative_speed: ops placed in the time in which plain Python places one.
        most_dated_ops: the ops of schedules with release dates, together.
    """

    @property
    def instance(self) -> Instance: ...

    @property
    def relative_speed(self) -> int: ...

    @property
    def most_dated_ops(self) -> int: ...

    def build(
        self, rules: Sequence[PriorityRule], releases_us: Sequence[int] = ()
    ) -> Built | None: ...

    def scored(self, built: Built) -> ScoredOrders: ...


class Builder:
    """List scheduling of one instance; holds the data that all schedules share.

    Args:
        is_time_up: polled within a schedule, which then remains unfinished.
    """

    relative_speed = 1
    most_dated_ops = RELEASE_DATES.most_ops

    def __init__(
        self, instance: Instance, objective: Objective, is_time_up: Callable[[], bool] = never
    ) -> None:
        self.instance, self.objective, self.is_time_up = instance, objective, is_time_up
        self.chains = [
            [CompletionReserve(instance, copies) for copies in instance.chains(rank)]
            for rank in range(instance.num_ranks)
        ]

    def build(
        self, rules: Sequence[PriorityRule], releases_us: Sequence[int] = ()
    ) -> ScoredOrders | None:
        """Schedule by these rules.

        None if the time is up, or at a dead end, to which tight or unusual memory can lead.

        Args:
            releases_us: by micro-batch of a replica, the earliest start of its first F; () for 0.
        """
        return _Greedy(self, rules, releases_us).run()

    def scored(self, built: ScoredOrders) -> ScoredOrders:
        """Return orders as they were built."""
        return built


class _Greedy:
    """All ranks in one event loop; arrivals are known as soon as their op has started."""

    def __init__(
        self, builder: Builder, rules: Sequence[PriorityRule], releases_us: Sequence[int]
    ) -> None:
        self.builder, self.rules = builder, rules
        self.instance = instance = builder.instance
        self.counts = [[0, 0, 0] for _ in instance.copies]
        self.usage = [0] * instance.num_ranks
        self.free_us = [0] * instance.num_ranks
        self.start_us = [_NEVER] * instance.num_ranks
        self.orders: list[list[tuple[int, OpKind]]] = [[] for _ in instance.headroom_bytes]
        self.acts: list[list[int]] = [[] for _ in instance.copies]
        self.grads: list[list[int]] = [[] for _ in instance.copies]
        self.link_free_us: dict[tuple[int, int], int] = {}
        self.events: list[tuple[int, int]] = []
        for index, copy in enumerate(instance.copies):
            if copy.above is None:
                count = copy.num_micro_batches
                self.acts[index] = list(releases_us[:count]) or [0] * count
                self.events.append((0, copy.rank))

    def run(self) -> ScoredOrders | None:
        num_left = LIST_SCHEDULING.events_per_poll
        while self.events:
            num_left -= 1
            if not num_left:
                if self.builder.is_time_up():
                    return None
                num_left = LIST_SCHEDULING.events_per_poll
            now, rank = heapq.heappop(self.events)
            if self.free_us[rank] <= now:
                self._act(rank, now)
        counts = zip(self.counts, self.instance.copies, strict=True)
        if any(weights < copy.num_micro_batches for (_, _, weights), copy in counts):
            return None
        ends = []
        for rank, held in enumerate(self.instance.held):
            steps_us = sum(self.instance[copy].duration_us[STEP] for copy in held)
            ends.append(self.free_us[rank] + steps_us)
        spans = Spans.of_ranks(zip(self.start_us, ends, strict=True))
        value_us = self.builder.objective.value_us(spans)
        return ScoredOrders(tuple(tuple(order) for order in self.orders), value_us)

    def _act(self, rank: int, now: int) -> None:
        choice, wake_us = self._choose(rank, now)
        if choice is not None:
            self._start(*choice, now)
        elif wake_us < _NEVER:
            heapq.heappush(self.events, (wake_us, rank))

    def _choose(self, rank: int, now: int) -> tuple[tuple[int, OpKind] | None, int]:
        """Return the op to start now, or None and the time to look again."""
        held = self.instance.held[rank]
        filler = self._weight(held)
        if filler is not None:
            _, b, w = self.counts[filler]
            if b - w > self.rules[filler].backlog:
                return (filler, W), now
        options: list[_Option] = []
        next_us, wake_us, blocked = _NEVER, _NEVER, False
        for copy in held:
            for option, at, wanted in self._options(copy):
                if at > now:
                    wake_us = min(wake_us, at)
                    next_us = min(next_us, at) if option is not None else next_us
                elif option is not None:
                    options.append(option)
                else:
                    blocked |= wanted
        if options:
            best = min(options)
            return (best.copy, best.kind), now
        if filler is not None:
            patience_us = self.rules[filler].patience * self.instance[filler].duration_us[W]
            if blocked or next_us - now >= patience_us:
                return (filler, W), now
        return None, wake_us

    def _weight(self, held: Sequence[int]) -> int | None:
        """Return the copy with the most waiting W's of which one fits."""
        best, most = None, 0
        for copy in held:
            _, b, w = self.counts[copy]
            if b - w > most and self._allows(copy, W, 0):
                best, most = copy, b - w
        return best

    def _options(self, copy: int) -> Iterator[tuple[_Option | None, int, bool]]:
        """Yield the next F and B: the option if it fits, its time, and if the rule allows it."""
        rule, (f, b, _) = self.rules[copy], self.counts[copy]
        depth = self.instance[copy].stage
        if f < len(self.acts[copy]):
            allowed = f - b < rule.limit
            fits = allowed and self._fits(copy, F)
            key = (not rule.forward_first, -depth if rule.eager else f, -depth)
            yield _Option(key, copy, F) if fits else None, self.acts[copy][f], allowed
        if b < min(f, len(self.grads[copy])):
            kind = self._backward(copy, rule)
            key = (rule.forward_first, depth if rule.eager else b, depth)
            yield _Option(key, copy, kind) if kind else None, self.grads[copy][b], True

    def _backward(self, copy: int, rule: PriorityRule) -> OpKind | None:
        """Return B or BW, the one that the rule prefers among those that fit."""
        can_fuse = self._fits(copy, BW)
        if rule.fused and can_fuse:
            return BW
        delta = self.instance[copy].delta_bytes[B]
        if self._allows(copy, W, delta) and self._fits(copy, B):
            return B
        return BW if can_fuse else None

    def _allows(self, copy: int, kind: OpKind, above_bytes: int) -> bool:
        usage = self.usage[self.instance[copy].rank] + above_bytes
        return self.instance.allows(copy, kind, usage)

    def _fits(self, copy: int, kind: OpKind) -> bool:
        """Return True if an op fits and leaves the completion reserve once waiting W's have run."""
        instance, counts = self.instance, self.counts
        rank = instance[copy].rank
        headroom = instance.headroom_bytes[rank]
        if headroom is None:
            return True
        if not self._allows(copy, kind, 0):
            return False
        usage = self.usage[rank] + instance[copy].delta_bytes[kind]
        for other in instance.held[rank]:
            _, b, w = counts[other]
            if b > w:
                if usage + instance[other].peak_above_bytes[W] > headroom:
                    return False
                usage += (b - w) * instance[other].delta_bytes[W]
        places = _COUNTED[kind]
        for place in places:
            counts[copy][place] += 1
        if kind == B:
            usage += instance[copy].delta_bytes[W]
        reserves = [chain.of_oldest(counts) for chain in self.builder.chains[rank]]
        for place in places:
            counts[copy][place] -= 1
        return usage + max(reserves) <= headroom

    def _start(self, index: int, kind: OpKind, now: int) -> None:
        copy = self.instance[index]
        rank, end = copy.rank, now + copy.duration_us[kind]
        self.orders[rank].append((index, kind))
        self.start_us[rank] = min(self.start_us[rank], now)
        self.free_us[rank] = end
        self.usage[rank] += copy.delta_bytes[kind]
        for place in _COUNTED[kind]:
            self.counts[index][place] += 1
        heapq.heappush(self.events, (end, rank))
        if kind == F and copy.below is None:
            self.grads[index].append(end)
        elif kind == F and copy.below is not None:
            self._deliver(self.acts, index, copy.below, end, copy.down_us)
        elif kind in (B, BW) and copy.above is not None:
            above = self.instance[copy.above]
            self._deliver(self.grads, index, copy.above, end, above.up_us, above.lead_us)

    def _deliver(
        self,
        inboxes: list[list[int]],
        source: int,
        target: int,
        end: int,
        lag_us: int,
        lead_us: int = 0,
    ) -> None:
        """Deliver a result; a link carries one transfer at a time.

        Args:
            lag_us: from the end of the op to the earliest start of the one that reads its result.
            lead_us: by how much that one starts before the result has arrived.
        """
        link = (self.instance[source].rank, self.instance[target].rank)
        if link[0] != link[1]:
            end = max(end, self.link_free_us.get(link, 0)) + lag_us
            self.link_free_us[link] = end + lead_us
        inboxes[target].append(end)
        heapq.heappush(self.events, (end, link[1]))


def search(
    builder: ListBuilder[Built],
    max_ops: int,
    seed: int,
    should_stop: Callable[[], bool] = never,
) -> list[Built]:
    """Try all variants, then change the best one copy by copy; return what is built, best first.

    Args:
        max_ops: the effort, in ops that plain Python places and not in time, so that the same input
            gives the same orders.
        should_stop: polled after each schedule.
    """
    instance = builder.instance
    budget = max(
        LIST_SCHEDULING.fewest_schedules, max_ops * builder.relative_speed // instance.num_ops
    )
    found: list[tuple[Built, list[PriorityRule]]] = []
    starts = list(variants(instance))[: max(LIST_SCHEDULING.fewest_uniform_rules, budget // 3)]
    for rules in starts:
        built = builder.build(rules)
        if built is not None:
            found.append((built, rules))
        if should_stop():
            break
    found.sort(key=lambda pair: pair[0].value_us)
    climbed = list[Built]()
    if found:
        steps, rng = budget - len(starts), random.Random(seed)
        climbed = _climb(builder, *found[0], steps, rng, should_stop)
    return climbed + [built for built, _ in found]


def _climb(
    builder: ListBuilder[Built],
    best: Built,
    rules: list[PriorityRule],
    steps: int,
    rng: random.Random,
    should_stop: Callable[[], bool],
) -> list[Built]:
    """Keep each change of one or two rules that is no worse; return what is better, best first."""
    improved, instance = list[Built](), builder.instance
    for _ in range(steps):
        if should_stop():
            break
        new = list(rules)
        for copy in rng.sample(range(len(instance)), min(len(instance), rng.choice((1, 1, 2)))):
            new[copy] = change(new[copy], instance[copy].num_micro_batches, rng)
        built = builder.build(new)
        if built is not None and built.value_us <= best.value_us:
            if built.value_us < best.value_us:
                improved.append(built)
            best, rules = built, new
    return improved[::-1]
