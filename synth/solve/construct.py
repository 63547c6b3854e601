"""List scheduling that minds memory: an event-driven greedy with several rules, and their search.

A rule decides what a rank does when it is free: how many micro-batches it may have under way,
whether F or B goes first, and when a W fills a gap. The best rules differ from rank to rank, so a
local search changes them one at a time. What is returned are orders; only an exact simulation of a
verified schedule says what they are worth.
"""

import heapq
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from synth.kinds import OpKind
from synth.schedule.ops import Op
from synth.solve.problem import Objective
from synth.solve.ranks import BW, SPLIT, STEP, B, F, Rank, Ranks, W

_NEVER = 1 << 60

# Which of a rank's counts (F, B, W) an op raises.
_COUNTED = {F: (0,), B: (1,), W: (2,), BW: (1, 2)}


class Rule(NamedTuple):
    """How one rank decides.

    Attributes:
        limit: the most micro-batches between their F and their B.
        forward_first: F before B where both can run.
        patience: a W runs when nothing else can for at least this share of its time.
        backlog: the most micro-batches between their B and their W, before W goes first.
        fused: BW instead of B. Where B does not fit and BW does, BW runs in any case.
    """

    limit: int
    forward_first: bool
    patience: float
    backlog: int
    fused: bool = False


@dataclass(frozen=True)
class Draft:
    """Orders by kind, one list per rank, and what they take where no transfer has to wait."""

    kinds: tuple[tuple[OpKind, ...], ...]
    value_us: int

    def programs(self) -> tuple[tuple[Op, ...], ...]:
        """Number the ops: per kind, micro-batches run in order."""
        return tuple(number(stage, kinds) for stage, kinds in enumerate(self.kinds))


def number(stage: int, kinds: Sequence[OpKind]) -> tuple[Op, ...]:
    """Turn an order of kinds into ops: micro-batches in order per kind, B and BW counted as one."""
    forwards, backwards, ops = 0, 0, []
    waiting: deque[int] = deque()
    for kind in kinds:
        if kind == F:
            ops.append(Op(F, stage, forwards))
            forwards += 1
        elif kind == W:
            ops.append(Op(W, stage, waiting.popleft()))
        else:
            ops.append(Op(kind, stage, backwards))
            if kind == B:
                waiting.append(backwards)
            backwards += 1
    return tuple(ops)


def build(ranks: Ranks, rules: Sequence[Rule], objective: Objective) -> Draft | None:
    """Run the greedy; None if it cannot go on, which tight and odd memory can cause."""
    return _Greedy(ranks, rules, objective).run()


class _Greedy:
    """All ranks in one event loop; `arrivals` are known as soon as their op has started."""

    def __init__(self, ranks: Ranks, rules: Sequence[Rule], objective: Objective) -> None:
        self.ranks, self.rules, self.objective = ranks, rules, objective
        size, self.m = len(ranks), ranks.num_micro_batches
        self.counts = [[0, 0, 0] for _ in range(size)]
        self.free_us = [0] * size
        self.start_us = [_NEVER] * size
        self.kinds: list[list[OpKind]] = [[] for _ in range(size)]
        self.acts: list[list[int]] = [[] for _ in range(size)]
        self.grads: list[list[int]] = [[] for _ in range(size)]
        self.acts[0] = [0] * self.m
        self.events: list[tuple[int, int]] = [(0, 0)]

    def run(self) -> Draft | None:
        while self.events:
            now, rank = heapq.heappop(self.events)
            if self.free_us[rank] <= now:
                self._act(rank, now)
        if any(weights < self.m for _, _, weights in self.counts):
            return None
        steps = [rank.duration_us[STEP] for rank in self.ranks.ranks]
        ends = [end + step for end, step in zip(self.free_us, steps, strict=True)]
        if self.objective == Objective.PERIOD:
            ends = [end - start for end, start in zip(ends, self.start_us, strict=True)]
        return Draft(tuple(tuple(kinds) for kinds in self.kinds), max(ends))

    def _act(self, rank: int, now: int) -> None:
        kind, wake_us = self._choose(rank, now)
        if kind is not None:
            self._start(rank, kind, now)
        elif wake_us < _NEVER:
            heapq.heappush(self.events, (wake_us, rank))

    def _choose(self, index: int, now: int) -> tuple[OpKind | None, int]:
        """What to start now, or when to look again."""
        rank, rule = self.ranks[index], self.rules[index]
        f, b, w = self.counts[index]
        f_at = self.acts[index][f] if f < len(self.acts[index]) else _NEVER
        b_at = self.grads[index][b] if b < min(f, len(self.grads[index])) else _NEVER
        can_w = w < b and rank.allows(W, f, b, w)
        if can_w and b - w > rule.backlog:
            return W, now
        f_fits = f - b < rule.limit and _keeps_a_way_out(rank, f, b, w)
        backward = _backward(rank, rule, f, b, w)
        b_fits = backward is not None
        f_now, b_now = f_fits and f_at <= now, b_fits and b_at <= now
        if f_now and (rule.forward_first or not b_now):
            return F, now
        if b_now:
            return backward, now
        if can_w:
            blocked = (f_at <= now and f - b < rule.limit) or b_at <= now
            next_us = min(f_at if f_fits else _NEVER, b_at if b_fits else _NEVER)
            if blocked or next_us - now >= rule.patience * rank.duration_us[W]:
                return W, now
        return None, min(f_at if f_at > now else _NEVER, b_at if b_at > now else _NEVER)

    def _start(self, index: int, kind: OpKind, now: int) -> None:
        rank = self.ranks[index]
        end = now + rank.duration_us[kind]
        self.kinds[index].append(kind)
        self.start_us[index] = min(self.start_us[index], now)
        self.free_us[index] = end
        for place in _COUNTED[kind]:
            self.counts[index][place] += 1
        heapq.heappush(self.events, (end, index))
        if kind == F and index + 1 < len(self.ranks):
            self._deliver(self.acts, index + 1, end, rank.down_us)
        elif kind == F:
            self.grads[index].append(end)
        elif kind in (B, BW) and index > 0:
            self._deliver(self.grads, index - 1, end, self.ranks[index - 1].up_us)

    def _deliver(self, inbox: list[list[int]], target: int, end: int, lag_us: int) -> None:
        """Transfers on one link take turns."""
        at = max(end, inbox[target][-1] if inbox[target] else 0) + lag_us
        inbox[target].append(at)
        heapq.heappush(self.events, (at, target))


def _keeps_a_way_out(rank: Rank, f: int, b: int, w: int) -> bool:
    """Whether F fits and leaves room to run, with all W's done, the next B and W, or BW."""
    return (
        rank.allows(F, f, b, w)
        and (w == b or rank.allows(W, f + 1, b, w))
        and (_can_split(rank, f + 1, b, b) or rank.allows(BW, f + 1, b, b))
    )


def _can_split(rank: Rank, f: int, b: int, w: int) -> bool:
    """Whether B fits, and a W after it: then memory can be had back at any time."""
    return rank.allows(B, f, b, w) and rank.allows(W, f, b + 1, w)


def _backward(rank: Rank, rule: Rule, f: int, b: int, w: int) -> OpKind | None:
    """B or BW, whichever the rule prefers of what fits."""
    can_fuse = rank.allows(BW, f, b, w)
    if rule.fused and can_fuse:
        return BW
    if _can_split(rank, f, b, w):
        return B
    return BW if can_fuse else None


def variants(ranks: Ranks) -> Iterator[list[Rule]]:
    """The uniform rules to start from: 1F1B's limits, zero bubble's, and as memory allows.

    Those that are best most often come first.
    """
    size, m = len(ranks), ranks.num_micro_batches
    cycle_us = max(sum(rank.duration_us[kind] for kind in SPLIT) for rank in ranks.ranks)
    away = [1 + -(-ranks.round_trip_us(r) // max(1, cycle_us)) for r in range(size)]
    limits = [
        [size - r for r in range(size)],
        [m] * size,
        [2 * (size - r) - 1 for r in range(size)],
        [size] * size,
        away,
        [a + 1 for a in away],
    ]
    for patience in (1.0, 0.5, 0.0):
        for backlog in (m, size, 1, 0):
            for forward_first in (True, False):
                for limit in limits:
                    yield [Rule(min(x, m), forward_first, patience, backlog) for x in limit]
        for limit in limits:
            yield [Rule(min(x, m), patience > 0, 0.0, 0, fused=True) for x in limit]


def search(
    ranks: Ranks,
    objective: Objective,
    max_ops: int,
    seed: int,
    should_stop: Callable[[], bool] = lambda: False,
) -> list[tuple[Draft, list[Rule]]]:
    """Try all variants, then change the best one rank by rank; return drafts, best first.

    Args:
        max_ops: the effort, in ops placed: a number of steps and not a time, so that the same
            input gives the same drafts.
        should_stop: asked after each draft, where there is less time than that.
    """
    per_draft = 3 * len(ranks) * ranks.num_micro_batches
    budget = max(12, max_ops // per_draft)
    found: list[tuple[Draft, list[Rule]]] = []
    rng = random.Random(seed)
    starts = list(variants(ranks))[: budget * 2 // 3]
    for rules in starts:
        draft = build(ranks, rules, objective)
        if draft is not None:
            found.append((draft, rules))
        if should_stop():
            break
    found.sort(key=lambda pair: pair[0].value_us)
    if found:
        steps = budget - len(starts)
        found[:0] = _climb(ranks, objective, found[0], steps, rng, should_stop)
    return found


def _climb(
    ranks: Ranks,
    objective: Objective,
    best: tuple[Draft, list[Rule]],
    steps: int,
    rng: random.Random,
    should_stop: Callable[[], bool],
) -> list[tuple[Draft, list[Rule]]]:
    """Keep every change of one or two ranks' rules that is not worse; best first."""
    improved = []
    for _ in range(steps):
        if should_stop():
            break
        rules = list(best[1])
        for rank in rng.sample(range(len(ranks)), min(len(ranks), rng.choice((1, 1, 2)))):
            rules[rank] = _change(rules[rank], ranks.num_micro_batches, rng)
        draft = build(ranks, rules, objective)
        if draft is not None and draft.value_us <= best[0].value_us:
            if draft.value_us < best[0].value_us:
                improved.append((draft, rules))
            best = (draft, rules)
    return improved[::-1]


def _change(rule: Rule, most: int, rng: random.Random) -> Rule:
    match rng.randrange(5):
        case 0:
            return rule._replace(limit=min(most, max(1, rule.limit + rng.choice((-2, -1, 1, 2)))))
        case 1:
            return rule._replace(forward_first=not rule.forward_first)
        case 2:
            return rule._replace(patience=rng.choice((0.0, 0.25, 0.5, 0.75, 1.0)))
        case 3:
            return rule._replace(fused=not rule.fused)
        case _:
            return rule._replace(backlog=min(most, rng.randrange(0, 5) ** 2))
