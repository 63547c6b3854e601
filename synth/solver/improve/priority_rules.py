"""The rules by which list scheduling chooses the next op of a stage copy."""

import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from synth.solver.instance.instance import Instance


class PriorityRule(NamedTuple):
    """The rule of one stage copy.

    Attributes:
        limit: the most micro-batches between their F and their B.
        forward_first: F before B if both can run.
        patience: a W runs if nothing else can for at least this share of its duration.
        backlog: the most micro-batches between their B and their W, before W goes first.
        fused: BW instead of B. If B does not fit and BW does, BW runs in any case.
        eager: newer micro-batches of this copy go before older ones of other copies of the rank.
    """

    limit: int
    forward_first: bool
    patience: float
    backlog: int
    fused: bool = False
    eager: bool = False


def variants(instance: Instance) -> Iterator[list[PriorityRule]]:
    """Yield uniform rules: with the limits of 1F1B, of zero bubble, and of memory.

    Those that are best most often come first.
    """
    size = 1 + max(copy.stage for copy in instance.copies)
    most = max(copy.num_micro_batches for copy in instance.copies)
    works = [sum(instance[c].work_us for c in held) for held in instance.held]
    away = [1 + -(-trip // max(1, *works)) for trip in instance.round_trip_us]
    stages = [copy.stage for copy in instance.copies]
    limits = [
        [size - s for s in stages],
        [most] * len(instance),
        [2 * (size - s) - 1 for s in stages],
        [size] * len(instance),
        away,
        [a + 1 for a in away],
    ]
    choices = (False, True) if len(instance) > instance.num_ranks else (False,)
    for patience in (1.0, 0.5, 0.0):
        for backlog in (most, size, 1, 0):
            for forward_first in (True, False):
                for eager in choices:
                    for limit in limits:
                        rule = PriorityRule(1, forward_first, patience, backlog, False, eager)
                        yield _limited(instance, rule, limit)
        for limit in limits:
            yield _limited(instance, PriorityRule(1, patience > 0, 0.0, 0, fused=True), limit)


def _limited(instance: Instance, rule: PriorityRule, limits: Sequence[int]) -> list[PriorityRule]:
    return [
        rule._replace(limit=min(limit, copy.num_micro_batches))
        for limit, copy in zip(limits, instance.copies, strict=True)
    ]


def change(rule: PriorityRule, most: int, rng: random.Random) -> PriorityRule:
    """Return the rule with one of its fields changed; `most` micro-batches are possible."""
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
