"""The order of the bounds, and their shares of the time."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from synth.schedule.files.certificate import ProvenBound
from synth.solver.bounds import bounds, forward_spacing, joint_spacing, rank_sets
from synth.solver.bounds.bound import BoundSetting, LowerBound, ProofState, RankwiseBound
from synth.solver.bounds.joint_spacing import JointSpacingProver
from synth.solver.cpsat.run import TimedBounds
from synth.solver.instance.instance import Instance
from synth.solver.options import Part
from synth.solver.tuning import BOUND_POLICY, JOINT_SPACING


class _Turn(NamedTuple):
    """A bound and its share of the remaining time."""

    bound: LowerBound | None
    share: float


@dataclass(frozen=True)
class BoundPolicy:
    """Bounds of a problem of which a schedule is known.

    Where ranks hold several stages, models of all ranks prove little. A rank alone proves most;
    with many micro-batches its idle times in warm-up and drain do or, where even a full pipeline
    idles, forward spacings. Where ranks hold one stage, models of several ranks prove most, and
    with many micro-batches spacings and idle times do.
    """

    setting: BoundSetting

    @property
    def _instance(self) -> Instance:
        return self.setting.instance

    @property
    def _known(self) -> ProofState:
        return self.setting.known

    def closed_forms(self) -> Iterator[ProvenBound]:
        """Yield the best closed form, which takes no time."""
        closed = self._bound(Part.CLOSED_FORMS)
        if closed is not None:
            yield from self._noted(self._proof(closed, 0.0))

    def one_by_one(self) -> Iterator[ProvenBound]:
        """Yield bounds from the least sets of ranks, in a share of the search's whole time."""
        alone = self._bound(Part.RANK_SUBSETS)
        if self._idles_count:
            alone = self._bound(Part.IDLE_TIME) or alone
        if alone is not None and isinstance(alone, RankwiseBound):
            limit_s = self._limit_of_one_by_one_s
            limit_s -= self._space_jointly(JOINT_SPACING.share * limit_s)
            self.setting.options.report_part(alone.part)
            yield from self._noted(alone.one_by_one(limit_s))

    def _space_jointly(self, limit_s: float) -> float:
        """Prove joint spacings, which help all models of ranks; return the seconds spent."""
        if not (self._has(Part.FORWARD_SPACING) and joint_spacing.is_worth(self._instance)):
            return 0.0
        options, joint = self.setting.exact_options, self._known.spacings.joint
        options.report_part(Part.FORWARD_SPACING)
        prover = JointSpacingProver(self._instance, options, self.setting.should_stop, joint)
        return prover.prove(limit_s)

    @property
    def _idles_count(self) -> bool:
        """True if ranks hold several stages, and too many ops for models of each rank alone."""
        instance = self._instance
        return instance.holds_several and not rank_sets.is_worth_alone(instance)

    @property
    def _limit_of_one_by_one_s(self) -> float:
        """Seconds of the clock, or deterministic ones; fewer where spacings prove most."""
        spaces = self._has(Part.FORWARD_SPACING) and forward_spacing.is_worth(self._instance)
        if self._instance.holds_several:
            share = BOUND_POLICY.one_by_one_share_of_several
        elif spaces:
            share = BOUND_POLICY.one_by_one_share_with_spacings
        else:
            share = BOUND_POLICY.one_by_one_share
        return share * self.setting.options.time_limit_s

    def together(self, limit_s: float) -> Iterator[ProvenBound]:
        """Yield bounds from several ranks."""
        yield from self._noted(self._together(limit_s))

    def _bound(self, part: Part) -> LowerBound | None:
        """Begin to bound with one kind; None if it is left out or does not apply."""
        return bounds()[part].of(self.setting) if self._has(part) else None

    def _has(self, part: Part) -> bool:
        return part not in self.setting.options.without

    def _proof(self, bound: LowerBound, limit_s: float) -> TimedBounds:
        self.setting.options.report_part(bound.part)
        return bound.prove(limit_s)

    def _noted(self, found: Iterator[ProvenBound]) -> Iterator[ProvenBound]:
        for proven in found:
            self._known.bound_us = max(self._known.bound_us, proven.bound_us)
            yield proven

    def _together(self, limit_s: float) -> Iterator[ProvenBound]:
        for bound, share in self._first():
            if bound is not None:
                limit_s -= yield from self._proof(bound, share * limit_s)
            if self.setting.should_stop():
                return
        subsets = self._bound(Part.RANK_SUBSETS)
        if subsets is not None:
            yield from self._proof(subsets, limit_s)

    def _first(self) -> Iterator[_Turn]:
        """Yield the bounds that come before growing sets of ranks."""
        if self._instance.holds_several:
            yield from self._first_of_several()
        elif forward_spacing.is_worth(self._instance):
            count = self._instance.copies[0].num_micro_batches
            if count >= BOUND_POLICY.idle_time_from_micro_batches:
                yield _Turn(self._bound(Part.IDLE_TIME), BOUND_POLICY.first_idle_time_share)
            share = BOUND_POLICY.spacing_share * min(
                1, count / BOUND_POLICY.full_spacing_from_micro_batches
            )
            yield _Turn(self._bound(Part.FORWARD_SPACING), share)

    def _first_of_several(self) -> Iterator[_Turn]:
        """Yield a trial of spacings and of idle times; those that then prove most continue.

        Idle times come only where single ranks have too many ops to be modelled whole.
        """
        apart = self._bound(Part.FORWARD_SPACING)
        idle = self._bound(Part.IDLE_TIME) if self._idles_count else None
        known_us = self._known.bound_us
        if apart is not None:
            yield _Turn(apart, BOUND_POLICY.trial_share)
        apart_us = 0 if apart is None else apart.bound_us
        if idle is not None and apart_us <= BOUND_POLICY.clearly_more * known_us:
            yield _Turn(idle, BOUND_POLICY.trial_share)
        idle_us = 0 if idle is None else idle.bound_us
        if BOUND_POLICY.nearly_as_much * apart_us >= max(idle_us, self._known.bound_us):
            yield _Turn(apart, BOUND_POLICY.share_of_several)
        if idle_us > apart_us and BOUND_POLICY.nearly_as_much * idle_us >= self._known.bound_us:
            yield _Turn(idle, BOUND_POLICY.share_of_several)
