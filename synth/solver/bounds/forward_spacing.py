"""Forward spacing: least distances between forwards of the first stage.

    rank 0 | F .. .. .. F .. .. .. F .. .. .. F .. B .. W |
           |<-- g(k) -->|<-- g(k) -->|<-- g(j) -->|<-tail->|

In any schedule, k + 1 consecutive micro-batches keep the caps without the others, and wait for
nothing more without them. So the distance from one's F to the k-th F after it is at least g(k), the
least distance where these micro-batches are alone (a minimum time lag). Spacings add up to a bound
for any number of micro-batches, and each one helps to prove the next ones and the models of all
micro-batches. Where ranks hold several stages, the last k + 1 micro-batches take longer than g(k)
plus the way down and up of the last one; so the least time from an F to the end is proven too.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple, Self

from synth.objective import Objective
from synth.schedule.files.certificate import Certificate, ForwardSpacing, ProvenBound, ProverName
from synth.solver.bounds.bound import BoundSetting
from synth.solver.bounds.forward_spacing_model import Spacings, spacing_model
from synth.solver.bounds.rechecker import Rechecker
from synth.solver.cpsat.run import ModelOutcome, TimedBounds, run
from synth.solver.instance.instance import B, F, Instance, OpIndex, W
from synth.solver.instance.timing import TimedOrders
from synth.solver.options import Part, SolveOptions
from synth.solver.tuning import FORWARD_SPACING


def applies(instance: Instance) -> bool:
    """Return True if one replica of the stages is all there is, and memory never goes negative.

    A micro-batch that is left out must not have held less than nothing, on any stage.
    """
    deltas = (copy.delta_bytes for copy in instance.copies)
    are_held = all(min(e[F], e[F] + e[B], e[F] + e[B] + e[W]) >= 0 for e in deltas)
    return are_held and not any(copy.replica for copy in instance.copies)


def is_worth(instance: Instance) -> bool:
    """Return True if memory is limited and micro-batches are many."""
    limited = any(headroom is not None for headroom in instance.headroom_bytes)
    fewest = (
        FORWARD_SPACING.fewest_micro_batches_of_several
        if instance.holds_several
        else FORWARD_SPACING.fewest_micro_batches
    )
    return applies(instance) and limited and instance.copies[0].num_micro_batches >= fewest


def lengths(instance: Instance) -> Iterator[int]:
    """Yield the lengths to prove: 1, then all from a burst on, ever sparser.

    A burst is the number of forwards that memory takes at once.
    """
    yield 1
    longest = max(1, round(FORWARD_SPACING.longest_share * instance.copies[0].last))
    # Later stages of the rank need memory too.
    burst = length = max(
        2, instance.most_forwards(0) // len(instance.held[instance.copies[0].rank])
    )
    while length <= longest:
        yield length
        if length < FORWARD_SPACING.dense_length:
            length += 1
            continue
        step = max(1, round(FORWARD_SPACING.growth_share * length))
        rounded = burst * math.ceil((length + step) / burst)
        length = rounded if rounded <= longest else length + step


def far_apart(instance: Instance, num_ranks: int) -> tuple[int, ...]:
    """Return up to three ranks that prove most together.

    Memory is short for longest on the first stage's rank, and ranks far away have to agree with it.
    """
    size = instance.num_ranks
    by_first_stage = sorted(range(size), key=lambda rank: instance.held[rank][0])
    far = size - 1 if instance.holds_several else 3 * size // 4
    places = (0, far, size // 2)[:num_ranks]
    return tuple(sorted({by_first_stage[place] for place in places}))


def of_few(instance: Instance, num_micro_batches: int) -> Instance:
    """Return the instance with fewer micro-batches, of one replica."""
    few = (copy._replace(num_micro_batches=num_micro_batches) for copy in instance.copies)
    return replace(instance, copies=tuple(few))


def closed_to_end_us(instance: Instance) -> int:
    """Return the time from the last F to the end of its rank: round trip, B, W, STEP."""
    first = instance.copies[0]
    return first.work_us + instance.round_trip_us[0] + instance.step_us(first.rank)


def of_spacings(lemmas: tuple[ForwardSpacing, ...]) -> Certificate:
    """Make the certificate of a bound that is a sum of spacings."""
    longest = max((lemma.num_forwards for lemma in lemmas), default=None)
    return Certificate(
        prover=ProverName.SPACING,
        num_micro_batches=None if longest is None else longest + 1,
        forward_spacings=lemmas,
    )


class _Question(NamedTuple):
    """A spacing to prove: the number of forwards after the first, or to the end of the rank."""

    length: int
    is_to_end: bool


@dataclass
class SpacingProver:
    """Proves the spacings of an instance, shortest first.

    Attributes:
        reference: called for a schedule before each length. Where its forwards are no farther apart
            than is proven, nothing is left to prove.
        known: the spacings proven so far, to which this adds.
    """

    part: ClassVar[Part] = Part.FORWARD_SPACING
    prover: ClassVar[ProverName] = ProverName.SPACING

    instance: Instance
    options: SolveOptions
    reference: Callable[[], TimedOrders | None]
    should_stop: Callable[[], bool]
    known: Spacings = field(default_factory=Spacings)
    objective: Objective = Objective.MAKESPAN

    @classmethod
    def of(cls, setting: BoundSetting) -> Self | None:
        """Begin from the spacings known; None if they are not worth it (`is_worth`)."""
        if not is_worth(setting.instance):
            return None
        return cls(
            setting.instance,
            setting.exact_options,
            lambda: setting.reference().hint,
            setting.should_stop,
            setting.known.spacings,
            setting.objective,
        )

    def __post_init__(self) -> None:
        self._left = self._questions()
        self._open: _Question | None = None
        self.known.to_end_us[0] = closed_to_end_us(self.instance)
        self.known.ranks = far_apart(self.instance, 2)

    @property
    def bound_us(self) -> int:
        """The bound of the whole from the spacings so far."""
        return self.objective.iterations * self.known.whole_us(self._last)

    def prove(self, limit_s: float) -> TimedBounds:
        """Yield bounds of the whole as spacings are proven, until one takes too long.

        A second call continues from there.

        Args:
            limit_s: seconds of the clock, or deterministic ones.
        """
        left_s = limit_s
        while left_s > 0 and not self.should_stop():
            question = self._open or next(self._left, None)
            if question is None:
                break
            outcome = self._prove(question, min(left_s, FORWARD_SPACING.share_of_one * limit_s))
            left_s -= outcome.spent_s
            self._open = None if outcome.optimal else question
            yield self._proven()
            if not outcome.optimal:
                break
        return limit_s - left_s

    def _proven(self) -> ProvenBound:
        """Return the bound with its lemmas, up to the longest that the sum contains."""
        whole_us, longest = self.known.whole(self._last)
        bound_us = self.objective.iterations * whole_us
        return ProvenBound(bound_us, of_spacings(self.known.lemmas(longest)))

    @property
    def _last(self) -> int:
        return self.instance.copies[0].last

    def _questions(self) -> Iterator[_Question]:
        """Yield the spacings that may still raise the bound."""
        for length in lengths(self.instance):
            nearest_us, to_end_us = self._nearest_us(length)
            if nearest_us is None or nearest_us > self.known.added_us(length):
                yield _Question(length, is_to_end=False)
            may_end_later = to_end_us is None or to_end_us > self.known.whole_us(length)
            if self.instance.holds_several and may_end_later:
                yield _Question(length, is_to_end=True)

    def _prove(self, question: _Question, limit_s: float) -> ModelOutcome:
        """Prove the least time from the first forward to the last, or to the end of the rank."""
        began_s = time.monotonic()
        length, is_to_end = question
        has_pairs = Part.PASSING_PAIRS not in self.options.without
        if has_pairs:
            self.options.report_part(Part.PASSING_PAIRS)
        model = spacing_model(
            of_few(self.instance, length + 1),
            self.known.ranks,
            self.known,
            is_to_end=is_to_end,
            passing_pairs=has_pairs,
        )
        outcome = run(model, self.options, limit_s, should_stop=self.should_stop, began_s=began_s)
        if is_to_end:
            known_us = self.known.whole_us(length)
            self.known.to_end_us[length] = max(known_us, outcome.bound_us)
        else:
            known_us = self.known.added_us(length)
            self.known.apart_us[length] = max(known_us, outcome.bound_us)
        return outcome

    def _nearest_us(self, length: int) -> tuple[int | None, int | None]:
        """Return the reference's least distance over a length, and its time from an F to the end.

        Without a reference both are None.
        """
        reference = self.reference()
        if reference is None:
            return None, None
        at = [reference.starts[0, OpIndex(F, k)] for k in range(self._last + 1)]
        nearest_us = min(later - earlier for earlier, later in zip(at, at[length:], strict=False))
        rank = self.instance.copies[0].rank
        ends = (
            reference.starts[copy, OpIndex(W, self._last)] + self.instance[copy].duration_us[W]
            for copy in self.instance.held[rank]
        )
        return nearest_us, max(ends) + self.instance.step_us(rank) - at[self._last - length]

    @classmethod
    def recheck(cls, certificate: Certificate, again: Rechecker) -> None:
        """Prove the spacings, and add them up."""
        known = recheck_spacings(certificate.forward_spacings, again)
        whole_us = known.whole_us(again.instance.copies[0].last)
        again.require(again.objective.iterations * whole_us >= again.claimed_us)


def recheck_spacings(lemmas: Iterable[ForwardSpacing], again: Rechecker) -> Spacings:
    """Prove spacings of a certificate one after the other, each with the help of those before.

    Raises:
        RecheckEnded: one of them has no proof.
    """
    known = Spacings()
    for lemma in lemmas:
        again.require(applies(again.instance))
        known.to_end_us[0] = closed_to_end_us(again.instance)
        _recheck_spacing(lemma, known, again)
        of_kind = known.to_end_us if lemma.is_to_end else known.apart_us
        of_kind[lemma.num_forwards] = lemma.least_us
    return known


def _recheck_spacing(lemma: ForwardSpacing, known: Spacings, again: Rechecker) -> None:
    ranks, first = again.ranks(lemma.ranks), again.instance.copies[0]
    again.require(first.rank in ranks and lemma.num_forwards <= first.last)
    few = of_few(again.instance, lemma.num_forwards + 1)
    model = spacing_model(few, ranks, known, is_to_end=lemma.is_to_end)
    again.refute_below(model, lemma.least_us)


BOUND = SpacingProver
