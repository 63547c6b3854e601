"""Recomputed layers of the ranks that exceed their limit, as few as they need.

Each rank chooses by itself, as in AdaPipe (ASPLOS 2024). The memory of a rank depends on the order
of its own ops and on its own layers alone, so all ranks are asked at once, and nothing is
simulated. A rank takes layers of one kind of one stage, under one policy: those that free what is
missing in the least time, or else those that free most in their time, until it fits. Then it drops
what it does not need.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, chain, pairwise
from typing import NamedTuple

from synth.costs.costs import Costs
from synth.costs.recomputation import FULL, NOT_RECOMPUTED, Recomputation
from synth.costs.recomputed_layers import policies_of
from synth.plan.published.variants import RecomputedLayers, Sizes, VariantCosts, least_us
from synth.schedule.model import Placement

# Returns by rank the bytes above the limit, negative below it.
AboveBytes = Callable[[Costs], Sequence[int]]


class _Option(NamedTuple):
    """Layers of one kind in one stage, and a policy under which they can be recomputed."""

    stage: int
    layers: tuple[int, ...]
    policy: str

    def left(self, chosen: Recomputation) -> list[int]:
        """Return the layers that keep more; `chosen` are those that are recomputed already."""
        is_full = self.policy == FULL
        return [at for at in self.layers if at not in chosen or (is_full and chosen[at] != FULL)]

    def taken(self, chosen: Recomputation) -> list[int]:
        """Return the layers that are recomputed under the policy."""
        return [at for at in self.layers if chosen.get(at) == self.policy]


class _Take(NamedTuple):
    """Layers that a rank may take next, the better ones less.

    The cost is the time that they add, or, if they do not free enough, that by the bytes freed.
    """

    is_short: bool
    cost: float
    layers: list[int]
    policy: str


class LayersAsNeeded:
    """The choice for one order of ops on one partition."""

    def __init__(
        self, costs: VariantCosts, sizes: Sizes, where: Placement, above_bytes: AboveBytes
    ) -> None:
        """Choose nothing yet."""
        self._costs, self._sizes, self._above_bytes = costs, sizes, above_bytes
        self._held = [sorted({stage for stage, _ in held}) for held in where.held]
        options = list(self._options())
        self._of_rank = [[one for one in options if one.stage in held] for held in self._held]

    def _options(self) -> Iterator[_Option]:
        profile = self._costs.profile
        for stage, (first, end) in enumerate(pairwise(accumulate(self._sizes, initial=0))):
            of_kind: dict[str, list[int]] = {}
            for at in range(first, end):
                of_kind.setdefault(profile.layers[at].profile, []).append(at)
            for layers in of_kind.values():
                for policy in policies_of(profile, layers[0]):
                    able = tuple(at for at in layers if policy in policies_of(profile, at))
                    yield _Option(stage, able, policy)

    def found(self) -> RecomputedLayers | None:
        """Return the layers; None if a rank exceeds its limit whatever it recomputes."""
        chosen, state = NOT_RECOMPUTED, self._state(NOT_RECOMPUTED)
        while any(above > 0 for above, _ in state):
            more = self._more(chosen, state)
            if not more:
                return None
            chosen = Recomputation({**chosen, **more})
            state = self._state(chosen)
        chosen = self._fewer(chosen)
        return chosen if chosen.of_policies else tuple(chosen)

    def _state(self, chosen: Recomputation) -> list[tuple[int, int]]:
        """Return by rank the bytes above the limit, and the work for a micro-batch in µs."""
        costs = self._costs.of(self._sizes, chosen if chosen.of_policies else tuple(chosen))
        works = [least_us(stage) for stage in costs.stages]
        ranks = zip(self._above_bytes(costs), self._held, strict=True)
        return [(above, sum(works[stage] for stage in held)) for above, held in ranks]

    def _more(self, chosen: Recomputation, state: list[tuple[int, int]]) -> Recomputation:
        """Return the layers that the ranks above their limits take next; none: a rank has none."""
        tried = [
            [one for one in options if above > 0 and one.left(chosen)]
            for options, (above, _) in zip(self._of_rank, state, strict=True)
        ]
        best: dict[int, _Take] = {}
        for number in range(max(map(len, tried))):
            now = {rank: those[number] for rank, those in enumerate(tried) if number < len(those)}
            firsts = {one.left(chosen)[0]: one.policy for one in now.values()}
            after = self._state(Recomputation({**chosen, **firsts}))
            for rank, one in now.items():
                (above, us), (above_after, us_after) = state[rank], after[rank]
                if (freed := above - above_after) <= 0:
                    continue
                layers, need = one.left(chosen), math.ceil(above / freed)
                more_us, is_short = us_after - us, need > len(layers)
                cost = more_us / freed if is_short else more_us * need
                take = _Take(is_short, cost, layers[:need], one.policy)
                best[rank] = min(best.get(rank, take), take)
        if len(best) < sum(above > 0 for above, _ in state):
            return NOT_RECOMPUTED
        return Recomputation({at: take.policy for take in best.values() for at in take.layers})

    def _fewer(self, chosen: Recomputation) -> Recomputation:
        """Return the layers without those that no rank needs."""
        queues = [list(filter(lambda one: one.taken(chosen), options)) for options in self._of_rank]
        while any(queues):
            now = {rank: queue[0] for rank, queue in enumerate(queues) if queue}
            dropped = {rank: one.taken(chosen)[-1:] for rank, one in now.items()}
            gone = set(chain.from_iterable(dropped.values()))
            after = self._state(chosen.within([at for at in chosen if at not in gone]))
            for rank, one in now.items():
                holders = (other for other, held in enumerate(self._held) if one.stage in held)
                if not dropped[rank] or any(after[other][0] > 0 for other in holders):
                    queues[rank].pop(0)
                else:
                    chosen = chosen.within([at for at in chosen if at not in dropped[rank]])
        return chosen
