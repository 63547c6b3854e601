"""Proven distances between forwards of the first stage, and the models that prove them.

rank 0 | F .. .. .. F .. .. .. F .. .. .. F .. B .. W |
       |<-- g(k) -->|<-- g(k) -->|<----- to end ----->|
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from synth.objective import Objective
from synth.schedule.files.certificate import ForwardSpacing
from synth.solver.bounds.joint_spacing import JointSpacings
from synth.solver.cpsat.model import ExactModel
from synth.solver.cpsat.op_variables import OpVariables
from synth.solver.cpsat.or_tools import cp_model
from synth.solver.cpsat.parameters import search_from_below
from synth.solver.cpsat.reductions import add_reductions
from synth.solver.cpsat.spans import Minimised, SpanVariable, ends_of_rank
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
        joint: those of two copies of the model.
    """

    apart_us: dict[int, int] = field(default_factory=dict)
    to_end_us: dict[int, int] = field(default_factory=dict)
    ranks: tuple[int, ...] = ()
    joint: JointSpacings = field(default_factory=JointSpacings)

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

    def add_to(self, ops: OpVariables, spans: Iterable[SpanVariable]) -> None:
        """Add every proven separation that shorter ones do not already imply.

        Args:
            ops: a model with the first stage's rank.
            spans: the spans that it minimises.
        """
        forwards, rank = _forwards(ops), ops.instance[0].rank
        apart, to_end = self.not_implied(len(forwards) - 1)
        for length, us in apart:
            for first, second in zip(forwards, forwards[length:], strict=False):
                ops.cp.add(second >= first + us)
        for length, us in to_end:
            for span in spans:
                ops.cp.add(span.length >= forwards[-1 - length] + us - span.origins[rank])

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


def _forwards(ops: OpVariables) -> list[cp_model.LinearExpr]:
    """The starts of all forwards of the first stage."""
    return [ops.start[0, OpIndex(F, k)] for k in range(ops.instance[0].num_micro_batches)]


def spacing_model(
    instance: Instance,
    scope: Iterable[int],
    known: Spacings,
    *,
    is_to_end: bool = False,
    passing_pairs: bool = True,
) -> ExactModel:
    """Make the model of the least time from the first forward of the first stage to the last one.

    Args:
        instance: its micro-batches are the forwards.
        scope: the modelled ranks.
        known: spacings of it and of longer instances.
        is_to_end: minimise the time to the end of the first stage's rank instead.
        passing_pairs: let ops pass each other on omitted ranks one at a time.
    """
    each_us = sum(c.work_us + c.down_us + c.up_us for c in instance.copies)
    steps_us = sum(map(instance.step_us, range(instance.num_ranks)))
    # All ops one after the other: no schedule needs more.
    longest_us = each_us * instance.copies[0].num_micro_batches + steps_us
    rank = instance[0].rank

    def minimise(ops: OpVariables) -> Minimised:
        """Minimise the start of the last forward or the end; no two are nearer than is known."""
        reduced = add_reductions(ops)
        value = ops.cp.new_int_var(0, longest_us, "apart")
        spans = (SpanVariable(value, 1, {rank: 0}),) if is_to_end else ()
        ops.cp.add(ops.start[0, OpIndex(F, 0)] == 0)
        for end in ends_of_rank(ops, rank, reduced) if is_to_end else _forwards(ops)[-1:]:
            ops.cp.add(value >= end)
        known.add_to(ops, spans)
        ops.cp.minimize(value)
        return Minimised(value, spans)

    return ExactModel(
        instance,
        Objective.MAKESPAN,
        longest_us,
        scope,
        passing_pairs=passing_pairs,
        minimise=minimise,
        most_counted=EXACT_MODEL.most_counted_ops_of_few_ranks,
        tune=search_from_below,
    )
