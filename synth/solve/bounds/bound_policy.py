"""The order of the bounds, and their shares of the time."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from synth.certificate import Proven
from synth.objective import Objective
from synth.solve.bounds import forward_spacing
from synth.solve.bounds.closed_form import work_bounds
from synth.solve.bounds.forward_spacing_model import Spacings
from synth.solve.bounds.idle_time import IdleBounds, IdleTimes
from synth.solve.bounds.rank_subsets import RankSubsets, Reference
from synth.solve.cpsat.run import TimedBounds
from synth.solve.instance.instance import Instance
from synth.solve.options import SolveOptions
from synth.solve.tuning import BOUND_POLICY


@dataclass
class ProofState:
    """Proven facts that later proofs begin with.

    Attributes:
        bound_us: the best bound of the objective.
        of_rank: the bound of the objective from each rank alone.
        spacings: distances between forwards of the first stage, and to the end of its rank.
        idle_us: least idle times of ranks at their ends.
    """

    bound_us: int = 0
    of_rank: dict[int, int] = field(default_factory=dict)
    spacings: Spacings = field(default_factory=Spacings)
    idle_us: IdleTimes = field(default_factory=dict)


class _Turn(NamedTuple):
    """A prover and its share of the remaining time."""

    bounds: Callable[[float], TimedBounds]
    share: float


@dataclass(frozen=True)
class BoundPolicy:
    """Bounds of a problem of which a schedule is known.

    Where ranks hold several stages, models of all ranks prove little. Their idle times in warm-up
    and drain prove more or, where even a full pipeline idles, forward spacings do. Where they hold
    one stage it is the other way round; with many micro-batches both kinds prove most.

    Attributes:
        instance: the one that is relaxed for fusion.
        reference: called at the beginning of each proof for the best value known then.
        should_stop: polled during each proof.
    """

    instance: Instance
    objective: Objective
    options: SolveOptions
    reference: Callable[[], Reference]
    known: ProofState
    should_stop: Callable[[], bool]

    def one_by_one(self, limit_s: float) -> Iterator[Proven]:
        """Yield bounds from each rank alone.

        Args:
            limit_s: for all of them; seconds of the clock, or deterministic ones.
        """
        idle = self._idle if self.instance.holds_several else None
        alone = self._rank_subsets if idle is None else idle
        yield from self._noted(alone.one_by_one(limit_s))

    def together(self, limit_s: float) -> Iterator[Proven]:
        """Yield bounds from growing sets of ranks."""
        yield from self._noted(self._together(limit_s))

    def _noted(self, bounds: Iterator[Proven]) -> Iterator[Proven]:
        for proven in bounds:
            self.known.bound_us = max(self.known.bound_us, proven.bound_us)
            yield proven

    def _together(self, limit_s: float) -> Iterator[Proven]:
        for turn in self._first():
            limit_s -= yield from turn.bounds(turn.share * limit_s)
            if self.should_stop():
                return
        yield from self._rank_subsets.together(limit_s)

    def _first(self) -> Iterator[_Turn]:
        """Yield the provers that come before growing sets of ranks."""
        if self.instance.holds_several:
            yield from self._first_of_several()
        elif forward_spacing.is_worth(self.instance):
            count, idle = self.instance.copies[0].num_micro_batches, self._idle
            if idle is not None and count >= BOUND_POLICY.idle_time_from_micro_batches:
                yield _Turn(idle.together, BOUND_POLICY.first_idle_time_share)
            share = BOUND_POLICY.spacing_share * min(
                1, count / BOUND_POLICY.full_spacing_from_micro_batches
            )
            yield _Turn(self._spacing_prover.bounds, share)

    def _first_of_several(self) -> Iterator[_Turn]:
        """Yield idle times or spacings, the better after a trial; both if they are near."""
        apart, idle = (
            self._spacing_prover if forward_spacing.is_worth(self.instance) else None,
            self._idle,
        )
        if apart is None or idle is None:
            if apart is not None:
                yield _Turn(apart.bounds, BOUND_POLICY.share_of_several)
            if idle is not None:
                yield _Turn(idle.together, BOUND_POLICY.idle_time_share)
            return
        known_us = self.known.bound_us
        yield _Turn(apart.bounds, BOUND_POLICY.trial_share)
        if apart.bound_us <= BOUND_POLICY.clearly_more * known_us:
            yield _Turn(idle.together, BOUND_POLICY.trial_share)
        is_near = BOUND_POLICY.nearly_as_much * apart.bound_us >= idle.bound_us
        if is_near:
            yield _Turn(apart.bounds, BOUND_POLICY.share_of_several)
        if idle.bound_us > apart.bound_us:
            yield _Turn(
                idle.together,
                BOUND_POLICY.share_of_several if is_near else BOUND_POLICY.idle_time_share,
            )

    @property
    def _spacing_prover(self) -> forward_spacing.SpacingProver:
        return forward_spacing.SpacingProver(
            self.instance,
            replace(self.options, gap=0.0),
            lambda: self.reference().hint,
            self.should_stop,
            self.known.spacings,
            self.objective,
        )

    @property
    def _rank_subsets(self) -> RankSubsets:
        return RankSubsets(
            self.instance,
            self.objective,
            replace(self.options, gap=0.0),
            self.reference,
            self.should_stop,
            self.known.of_rank,
            self.known.spacings,
            self.known.bound_us,
        )

    @property
    def _idle(self) -> IdleBounds | None:
        """Idle-time bounds, None where the origins of the ranks vary and the period counts."""
        if self.objective.periods and self.instance.origins_us is None:
            return None
        return IdleBounds(
            self.instance,
            self.objective,
            # One worker searches from below; further ones would look for schedules.
            replace(self.options, gap=0.0, workers=1),
            work_bounds(self.instance),
            self.reference,
            self.should_stop,
            self.known.idle_us,
        )
