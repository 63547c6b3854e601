"""Proven distances between forwards of the first stage, and the models that prove them.

rank 0 | F .. .. .. F .. .. .. F .. .. .. F .. B .. W |
       |<-- g(k) -->|<-- g(k) -->|<----- to end ----->|
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from synth.objective import Objective
from synth.schedule.files.certificate import ForwardSpacing
from synth.solver.cpsat.model import ExactModel, SpanVariable
from synth.solver.cpsat.or_tools import cp_model
from synth.solver.cpsat.run import search_from_below
from synth.solver.instance.instance import F, Instance, OpIndex
from synth.solver.tuning import EXACT_MODEL

# A number of forwards, and their least distance in microseconds.
_Least = tuple[int, int]


@dataclass
class Spacings:
    """Distances proven for every schedule of an instance.

    Attributes:
        apart_us: by the number k of forwards, from the start of one to the start of the k-th after.
        to_end_us: by the number k of forwards that follow, from the start of one to the end of its
            rank.
        ranks: modelled in both proofs.
    """

    apart_us: dict[int, int] = field(default_factory=dict)
    to_end_us: dict[int, int] = field(default_factory=dict)
    ranks: tuple[int, ...] = ()

    @property
    def say_more(self) -> bool:
        """True if they exceed the duration of a forward and a round trip."""
        return max(self.apart_us, default=0) > 1 or max(self.to_end_us, default=0) > 0

    def added_us(self, length: int) -> int:
        """The largest sum of spacings over a length."""
        return _best_and_sums(self.apart_us, length)[0][length]

    def whole_us(self, length: int) -> int:
        """The largest sum of spacings over a length and to the end of the rank."""
        return self.whole(length)[0]

    def whole(self, length: int) -> tuple[int, int]:
        """The same sum, and the longest spacing in it."""
        best, sums = _best_and_sums(self.apart_us, length)
        ends = [(best[length - k] + us, k) for k, us in self.to_end_us.items() if k <= length]
        whole_us, last = max(ends, key=lambda end: (end[0], -end[1]), default=(best[length], 0))
        longest, left = last, [length - last]
        while left:
            part = left.pop()
            if best[part] > sums[part]:
                longest = max(longest, part)
            elif best[part] > 0:
                halves = range(1, part // 2 + 1)
                half = next(k for k in halves if best[k] + best[part - k] == best[part])
                left += [half, part - half]
        return whole_us, longest

    def kept_by(self, model: ExactModel) -> None:
        """Add every proven separation that shorter ones do not already imply.

        Args:
            model: has the first stage's rank.
        """
        forwards = _forwards(model)
        apart, to_end = self.not_implied(len(forwards) - 1)
        for length, us in apart:
            for first, second in zip(forwards, forwards[length:], strict=False):
                model.cp.add(second >= first + us)
        for length, us in to_end:
            model.ends_after(model.instance[0].rank, forwards[-1 - length] + us)

    def not_implied(self, longest: int) -> tuple[list[_Least], list[_Least]]:
        """Return spacings up to a length, and those to the end, that shorter ones do not imply."""
        best, sums = _best_and_sums(self.apart_us, longest)
        lengths = sorted(length for length in self.apart_us if length <= longest)
        apart = [(k, self.apart_us[k]) for k in lengths if self.apart_us[k] > sums[k]]
        said: list[_Least] = []
        for length, us in sorted(self.to_end_us.items()):
            if length <= longest and all(us > best[length - k] + end for k, end in said):
                said.append((length, us))
        # The model itself implies the time from the last forward to the end.
        return apart, [(length, us) for length, us in said if length > 0]

    def lemmas(self, longest: int) -> tuple[ForwardSpacing, ...]:
        """Return all spacings up to a length that shorter ones do not imply, shorter ones first."""
        both = zip(self.not_implied(longest), (False, True), strict=True)
        found = (
            ForwardSpacing(num_forwards=k, least_us=us, ranks=self.ranks, is_to_end=is_to_end)
            for leasts, is_to_end in both
            for k, us in leasts
        )
        return tuple(sorted(found, key=lambda lemma: (lemma.num_forwards, lemma.is_to_end)))


def _best_and_sums(apart_us: Mapping[int, int], longest: int) -> tuple[list[int], list[int]]:
    """Return for each length the best known distance, and the largest sum of shorter ones."""
    best, sums = [0], [0]
    for end in range(1, longest + 1):
        sums.append(max((best[k] + best[end - k] for k in range(1, end // 2 + 1)), default=0))
        best.append(max(apart_us.get(end, 0), sums[end]))
    return best, sums


def _forwards(model: ExactModel) -> list[cp_model.LinearExpr]:
    """The starts of all forwards of the first stage."""
    return [model.start[0, OpIndex(F, k)] for k in range(model.instance[0].num_micro_batches)]


class SpacingModel(ExactModel):
    """Minimises the time from the first forward of the first stage to the last one.

    Args:
        instance: its micro-batches are the forwards.
        known: spacings of it and of longer instances.
        passing_pairs: let ops pass each other on omitted ranks one at a time.
    """

    most_counted = EXACT_MODEL.most_counted_ops_of_spacing

    def __init__(
        self,
        instance: Instance,
        scope: Iterable[int],
        known: Spacings,
        *,
        passing_pairs: bool = True,
    ) -> None:
        self._known = known
        each_us = sum(c.work_us + c.down_us + c.up_us for c in instance.copies)
        steps_us = sum(map(instance.step_us, range(instance.num_ranks)))
        # All ops one after the other: no schedule needs more.
        longest_us = each_us * instance.copies[0].num_micro_batches + steps_us
        super().__init__(
            instance, Objective.MAKESPAN, longest_us, scope, passing_pairs=passing_pairs
        )

    def tune(self, parameters: cp_model.SatParameters) -> None:
        """Search from below: only the least value is needed, not its schedule."""
        search_from_below(parameters)

    def minimise(self) -> None:
        """Minimise the start of the last forward; no two are nearer than is known."""
        self.value = self.cp.new_int_var(0, self.horizon_us, "apart")
        self.spans = self._spans()
        self.cp.add(self.start[0, OpIndex(F, 0)] == 0)
        for end in self._last():
            self.cp.add(self.value >= end)
        self._known.kept_by(self)
        self.cp.minimize(self.value)

    def _last(self) -> Iterator[cp_model.LinearExpr]:
        yield _forwards(self)[-1]

    def _spans(self) -> list[SpanVariable]:
        """The end of the rank does not count."""
        return []


class SpacingToEndModel(SpacingModel):
    """Minimises the time from the first forward of the first stage to the end of its rank."""

    def _last(self) -> Iterator[cp_model.LinearExpr]:
        yield from self._ends_of_rank(self.instance[0].rank)

    def _spans(self) -> list[SpanVariable]:
        return [SpanVariable(self.value, 1, {self.instance[0].rank: 0})]
