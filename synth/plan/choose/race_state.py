"""The state of a race between candidates: their trials, those that can still win, their bounds."""

from collections.abc import Sequence
from dataclasses import replace
from operator import itemgetter

from synth.objective import BoundScope
from synth.plan.choose.candidates import Candidate, Partitioning, Trial, best_us
from synth.plan.partition import bounds
from synth.plan.partition.path_dp import Sizes
from synth.plan.partition.queue import PartitionQueue
from synth.plan.recompute.choice import bound_us as closed_bound_us
from synth.plan.recompute.choice import quick_bound_us
from synth.plan.recompute.layer_choice import without_layers
from synth.plan.tuning import RACE
from synth.schedule.files.certificate import CLOSED_FORMS, Certificate, PartitionProof, ProvenBound
from synth.search.outcome import rank_key, relative_gap
from synth.solver.evaluate.evaluate import EvaluatedSchedule
from synth.solver.problem import Problem
from synth.solver.result import Result


class RaceState:
    """The trials of a race, and the partitions that are still to be tried.

    Attributes:
        partitioning: keep the given partitions, or make others.
        gap: the relative gap of the best value to a bound at which a candidate is pruned.
        trials: one per candidate and partition, also of those not yet searched.
        is_judged: published schedules were judged before all trials, and some fit.
        queues: by placement name, the partitions to try next; empty unless they are searched.
    """

    def __init__(
        self, candidates: Sequence[Candidate], partitioning: Partitioning, gap: float
    ) -> None:
        self.candidates, self.partitioning, self.gap = candidates, partitioning, gap
        self.queues: dict[str, PartitionQueue] = {}
        self.trials: list[Trial] = []
        self.is_judged = False
        self._are_dropped = False  # trials that were never searched
        self._dropped: list[Trial] = []

    def new(self, candidate: Candidate, *, is_quick: bool = False) -> Trial:
        """Make a trial of a candidate, with a closed-form bound or the one of its partition.

        Args:
            is_quick: leave the memory limits out of the bound if that takes long; see `tighten`.
        """
        problem = candidate.problem
        closed = quick_bound_us if is_quick else closed_bound_us
        bound_us = closed(problem, candidate.choice)
        if problem.partition is not None and candidate.name in self.queues:
            bound_us = max(bound_us, self.queues[candidate.name].bound_us(problem.partition))
        return Trial(candidate, bound_us)

    def new_beside(self, other: Trial, problem: Problem, found: EvaluatedSchedule) -> Trial:
        """Make a trial on the placement of another one, with a schedule as its result.

        Args:
            problem: the problem of the schedule.
        """
        trial = self.new(other.candidate.on(without_layers(problem)))
        trial.offer(problem, found)
        trial.published = other.published
        return trial

    def tighten(self, trial: Trial) -> None:
        """Make up for a quick bound."""
        bound_us = self.new(trial.candidate).lower_bound_us
        trial.lower_bound_us = max(trial.lower_bound_us, bound_us)

    def admitted(self, name: str, problem: Problem) -> Trial | None:
        """Return a trial on a partition if it can win; else prune the partition for good."""
        candidate = next(one for one in self.candidates if one.name == name)
        trial = self.new(candidate.on(problem))
        if self.can_win(trial):
            return trial
        self.queues[name].prune(problem, trial.lower_bound_us)
        return None

    def add(self, new: Trial) -> Trial:
        """Add a trial, or give its schedule to a trial of the same problem, which keeps its bound.

        Returns:
            The trial that is in the race.
        """
        for old in self.trials:
            if old.is_of_same(new):
                if rank_key(new.value_us) < rank_key(old.value_us):
                    old.found, old.is_over = new.found, False
                return old
        self.trials.append(new)
        return new

    def keep_only(self, best: Trial) -> None:
        """Leave all trials out that were never searched, except for a fixed one and the best."""
        self._keep([best])
        self._are_dropped = True

    def keep_best_of_each(self) -> None:
        """Leave one trial of each placement, the best, besides fixed and searched ones."""
        best: dict[str, Trial] = {}
        for one in self.ranked():
            if not one.is_fixed:
                best.setdefault(one.name, one)
        for one in self.trials:
            if one.published and one.name in best and not best[one.name].published:
                best[one.name].published = one.published
        self._keep(list(best.values()))

    def _keep(self, best: Sequence[Trial]) -> None:
        kept = [one for one in self.trials if one in best or one.is_fixed or one.num_searches]
        self._dropped = [one for one in self.trials if one not in kept]
        self.trials = kept

    def take_back(self) -> bool:
        """Take the best trial back that was left out and may become the best, if there is one."""
        able = (one for one in self._dropped if self.can_win(one))
        best = min(able, key=lambda one: rank_key(one.value_us), default=None)
        if best is None:
            return False
        self._dropped.remove(best)
        self.trials.append(best)
        return True

    # Results

    @property
    def best_us(self) -> int | None:
        """The best value found; None if there is none."""
        return best_us(self.trials)

    @property
    def incumbent(self) -> Trial | None:
        """The trial with the best schedule, fixed or not; None if there is no schedule."""
        return next((one for one in self.ranked() if one.value_us is not None), None)

    @property
    def best(self) -> Trial | None:
        """The best trial from which a search can start; None if there is no schedule."""
        ranked = (one for one in self.ranked() if not one.is_fixed and one.value_us is not None)
        return next(ranked, None)

    @property
    def is_untried(self) -> bool:
        """True if no candidate has a result yet."""
        return all(trial.found is None for trial in self.trials)

    def best_of(self, name: str) -> Result | None:
        """Return the best result on a placement; its order may fit other partitions too."""
        found = (one.found for one in self.ranked() if one.name == name and not one.is_fixed)
        best = next((one for one in found if one is not None), None)
        return None if best is None or best.schedule is None else best

    def is_near(self, name: str, times: float) -> bool:
        """Return True if a value on a placement is near the best."""
        best = self.best_of(name)
        return best is not None and (best.value_us or 0) <= times * (self.best_us or 0)

    def partitions_of(self, name: str) -> list[tuple[int, ...]]:
        """Return the partitions of a placement that have trials."""
        problems = (one.problem for one in self.trials if one.name == name)
        return [problem.partition for problem in problems if problem.partition is not None]

    def bounds_of(self, name: str) -> dict[tuple[int, ...], ProvenBound]:
        """Return the bounds of the partitions of a placement that have trials."""
        return {
            one.problem.partition: ProvenBound(one.lower_bound_us, one.certificate or CLOSED_FORMS)
            for one in self.trials
            if one.name == name and one.problem.partition is not None
        }

    def copies(self) -> tuple[Trial, ...]:
        """Return copies of all trials, best first."""
        return tuple(map(replace, self.ranked()))

    def ranked(self) -> list[Trial]:
        """Return all trials, best first; untried ones last."""
        return sorted(
            self.trials,
            key=lambda trial: (rank_key(trial.value_us), trial.found is None, trial.is_impossible),
        )

    # Candidates that can win

    def can_win(self, trial: Trial) -> bool:
        """Return True if the trial may still become the best."""
        best_us = self.best_us
        # The bound does not hold for another partition, which the first trial may choose.
        is_new = (
            trial.found is None
            and self.partitioning == Partitioning.EVEN
            and trial.candidate.choice != ()
        )
        if trial.is_over or is_new or best_us is None:
            return not trial.is_over
        return relative_gap(best_us, trial.lower_bound_us) > self.gap

    def promising(self) -> list[Trial]:
        """Return the trials that may still become the best, best first."""
        self._take_bounds_of_partitions()
        return [trial for trial in self.ranked() if self.can_win(trial)]

    def near(self, times: float = RACE.near_factor, *, is_first_round: bool = False) -> list[Trial]:
        """Return the promising trials whose value is near the best.

        Candidates on which no published schedule fits are not near once others were judged, but may
        have a trial in the first round. There the best list schedule of a partition counts, too.
        """
        most_us, promising = times * (self.best_us or 0), self.promising()
        with_unknown = is_first_round or not self.is_judged
        by_lists = is_first_round and self.bounds_all_partitions
        values = [self._estimated_us(one) if by_lists else one.value_us for one in promising]
        return [
            one
            for one, value_us in zip(promising, values, strict=True)
            if (with_unknown if value_us is None else value_us <= most_us)
        ]

    def first_round(self, limit_s: float) -> Sequence[Trial]:
        """Return the trials of the first round: as many as there is time for, best first.

        Those without a schedule, on partitions that look good, take turns with the others. The
        first partition of a single placement is among them however long its published schedules
        are.
        """
        near = self.near(RACE.trial_factor, is_first_round=True)
        first = self.trials[0]
        if len(self.candidates) == 1 and first not in near and self.can_win(first):
            near.append(first)
        of_kinds: tuple[list[Trial], list[Trial]] = ([], [])
        for trial in near:
            if not trial.num_searches:
                of_kinds[trial.found is None or trial is first].append(trial)
        turns = (turn for kind in of_kinds for turn in enumerate(kind))
        untried = [trial for _, trial in sorted(turns, key=itemgetter(0))]
        if self.bounds_all_partitions:
            # Once the best is known, bounds leave many of the others out.
            untried.sort(key=lambda trial: rank_key(self._estimated_us(trial)))
        most = limit_s / (RACE.trial_s_per_op * self.candidates[0].problem.num_ops)
        return untried[: max(1, int(most))]

    def _estimated_us(self, trial: Trial) -> int | None:
        """Return the value of a trial, or that of its best list schedule if this is less.

        None if neither is known.
        """
        queue, sizes = self.queues[trial.name], trial.problem.partition
        # Judged with all micro-batches, or not comparable.
        is_whole = sizes is not None and queue.bounds is queue.search.bounds
        judged = queue.search.judged.get(sizes) if is_whole and sizes else None
        known = [trial.value_us, None if judged is None else judged.value_us]
        return min((us for us in known if us is not None), default=None)

    @property
    def has_many_cuts(self) -> bool:
        """True if one placement is searched for its partition without bounds over all of them."""
        is_alone = len(self.candidates) == 1 and self.partitioning == Partitioning.SEARCHED
        return is_alone and not bounds.applies(self.candidates[0].problem)

    @property
    def has_placements(self) -> bool:
        """True if several placements are searched for their partitions."""
        return len(self.candidates) > 1 and self.partitioning == Partitioning.SEARCHED

    @property
    def best_with_bounds(self) -> Candidate | None:
        """The candidate of the best value, of several, if bounds over all its partitions exist."""
        if not self.has_placements or self.best is None or not bounds.applies(self.best.problem):
            return None
        return next(one for one in self.candidates if one.name == self.best.name)

    @property
    def bounds_all_partitions(self) -> bool:
        """True if there are bounds over all partitions of all candidates."""
        queues = self.queues.values()
        is_of_each = {candidate.name for candidate in self.candidates} == self.queues.keys()
        return is_of_each and all(queue.bounds is not None for queue in queues)

    @property
    def bound_scope(self) -> BoundScope:
        """The scope of `bound_us`."""
        is_given = len(self.candidates) == 1 and self.partitioning == Partitioning.GIVEN
        if is_given or (self._are_dropped and len(self.trials) == 1):
            return BoundScope.PARTITION
        return BoundScope.ALL if self.bounds_all_partitions else BoundScope.CANDIDATES

    @property
    def untried_can_win(self) -> bool:
        """True if, by bounds over all partitions, an untried partition may be better."""
        if not self.bounds_all_partitions:
            return False
        # Without a result, list schedules with all micro-batches count.
        judged = [c.search.best_us for c in self.queues.values() if c.bounds is c.search.bounds]
        values = [self.best_us] if self.best_us is not None else judged
        best_us = min((us for us in values if us is not None), default=None)
        if best_us is None:
            return True
        return relative_gap(best_us, min(best_us, self._others_us())) > self.gap

    def gap_is_of_others(self, best: Trial, promising: Sequence[Trial]) -> bool:
        """Return True if other candidates than the best account for most of the remaining gap."""
        if best.value_us is None or not self.bounds_all_partitions:
            return False
        others = (one.lower_bound_us for one in promising if one is not best)
        others_us = min(self._others_us(), *others, best.value_us)
        own = relative_gap(best.value_us, best.lower_bound_us)
        return own < RACE.own_gap_share * relative_gap(best.value_us, others_us)

    def _others_us(self) -> int:
        """Return the lower bound over all untried partitions."""
        least = (queue.least_us(self.partitions_of(name)) for name, queue in self.queues.items())
        return min(bound_us for bound_us in least if bound_us is not None)

    # Bounds that hold for all candidates

    def bound_us(self, value_us: int | None, trial: Trial, own_us: int) -> int:
        """Return the lower bound over all candidates; 0 if all are impossible.

        Fixed trials count only if they are the best.

        Args:
            value_us: the best value; None: there is no schedule.
            trial: the trial that has it.
            own_us: the lower bound of that trial.
        """
        others = (one for one in self.trials if one is not trial and not one.is_fixed)
        bounds = [one.lower_bound_us for one in others if not one.is_impossible]
        bounds += [] if trial.is_impossible else [own_us]
        least_us = min(bounds, default=0)
        if self.bounds_all_partitions:
            least_us = min(least_us, self._others_us())
        return least_us if value_us is None else min(least_us, value_us)

    def certificate(
        self, bound_us: int, trial: Trial, own: Certificate | None
    ) -> Certificate | None:
        """Return the certificate of a bound over all partitions, or of that on one candidate.

        Args:
            trial: the trial of the candidate.
            own: the certificate of the bound on it.
        """
        if not self.bounds_all_partitions:
            return own
        if len(self.queues) > 1:
            return None
        ((name, queue),) = self.queues.items()
        single = {} if queue.single is None else queue.single.proven
        proven: dict[Sizes | None, Certificate | None] = {
            sizes: one.certificate for sizes, one in single.items()
        }
        of_name = (one for one in self.trials if one.name == name)
        proven |= {one.problem.partition: one.certificate for one in of_name}
        proven[trial.problem.partition] = own
        proofs = (
            PartitionProof(sizes=sizes, certificate=certificate or CLOSED_FORMS)
            for sizes, certificate in proven.items()
            if sizes is not None
        )
        return None if queue.bounds is None else queue.bounds.certificate(bound_us, proofs)

    def settle_bounds(self) -> None:
        """Give each trial the best bound that is known of its problem."""
        self._share_bounds()
        self._take_bounds_of_partitions()

    def _take_bounds_of_partitions(self) -> None:
        """Raise the bounds of trials to those of their partitions, alone or by runs of layers.

        Only where the certificate of the answer names these.
        """
        if not self.bounds_all_partitions:
            return
        for trial in self.trials:
            sizes = trial.problem.partition
            if sizes is None or trial.is_fixed or trial.is_impossible:
                continue
            queue = self.queues[trial.name]
            proven = queue.proven(sizes)
            if proven is not None and proven.bound_us > trial.lower_bound_us:
                trial.lower_bound_us, trial.certificate = proven
            trial.lower_bound_us = max(trial.lower_bound_us, queue.bound_us(sizes))

    def _share_bounds(self) -> None:
        """Give all trials of the same problem the best of their bounds, with its certificate."""
        for trial in self.trials:
            same = [one for one in self.trials if one.is_of_same(trial) and not one.is_impossible]
            if same and not trial.is_impossible:
                best = max(same, key=lambda one: one.lower_bound_us)
                if best.lower_bound_us > trial.lower_bound_us:
                    trial.lower_bound_us, trial.certificate = best.lower_bound_us, best.certificate
