"""Which bounds are tried, and for how long: by parts of the ranks, and by the idle time of one."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from synth.certificate import Proven
from synth.objective import Objective
from synth.solve.bounds import forward_spacing
from synth.solve.bounds.closed_form import RankSubsets, Reference, work_bounds
from synth.solve.bounds.forward_spacing_model import Spacings
from synth.solve.bounds.idle_time import IdleBounds, IdleTimes
from synth.solve.cpsat.run import TimedBounds
from synth.solve.instance.instance import Instance
from synth.solve.options import SolveOptions
from synth.solve.tuning import BOUND_POLICY


@dataclass
class ProofState:
    """What has been found, for later proofs to begin with.

    Attributes:
        bound_us: of the objective, by any of them.
        of_rank: of the objective, when each rank was looked at alone.
        spacings: how far apart so many forwards of the first stage are, and the end of its rank.
        idle_us: how long ranks idle at their ends.
    """

    bound_us: int = 0
    of_rank: dict[int, int] = field(default_factory=dict)
    spacings: Spacings = field(default_factory=Spacings)
    idle_us: IdleTimes = field(default_factory=dict)


class _Turn(NamedTuple):
    """What is tried next, and its share of the time that is left."""

    bounds: Callable[[float], TimedBounds]
    share: float


@dataclass(frozen=True)
class BoundPolicy:
    """Bounds of a problem of which a schedule is known.

    Ranks that hold several stages are hardly bounded as a whole; what they must idle at their
    beginning and at their end is, or, where even a full pipeline idles, how far apart a part of the
    micro-batches must be. With one stage per rank it is the other way round; where micro-batches
    are many, both say most.

    Attributes:
        instance: the relaxed one, from which all bounds come.
        reference: asked for what is known then, whenever a proof begins.
        should_stop: asked all the time.
    """

    instance: Instance
    objective: Objective
    options: SolveOptions
    reference: Callable[[], Reference]
    known: ProofState
    should_stop: Callable[[], bool]

    def one_by_one(self, limit_s: float) -> Iterator[Proven]:
        """Bounds from each rank alone.

        Args:
            limit_s: for all of them; seconds of the clock, or deterministic ones.
        """
        idle = self._idle if self.instance.holds_several else None
        alone = self._rank_subsets if idle is None else idle
        yield from self._noted(alone.one_by_one(limit_s))

    def together(self, limit_s: float) -> Iterator[Proven]:
        """Bounds from more and more ranks."""
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
        """What is tried before growing sets of ranks."""
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
        """Idle times or spacings, whichever says more after a trial; both if spacings nearly do."""
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
        """Where it is certain from when on the time of a rank counts."""
        if self.objective.periods and self.instance.origins_us is None:
            return None
        return IdleBounds(
            self.instance,
            self.objective,
            # One searches from below; others beside it would look for schedules.
            replace(self.options, gap=0.0, workers=1),
            work_bounds(self.instance),
            self.reference,
            self.should_stop,
            self.known.idle_us,
        )
