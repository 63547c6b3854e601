"""Proving the bound that a plan claims again, by the solver's own provers and within a time limit.

A certificate in the plan names the prover and its models. Only these are solved again
(`synth.solver.bounds.recheck`), and nothing in it is trusted. Without one all provers run.
The scope of the bound decides how it is proven:

    not searched      the largest work of a rank, of schedules with the same ops
    weights travel    closed forms over all schedules whose weights travel in the same way
    R in it, or auto  closed forms in which no B waits for its R; auto: whichever layers too
    this partition    closed forms; then the solver, begun from the plan, until it has the bound
    all partitions    this one as above, the others by bounds of runs of layers, one by one the rest

A schedule that is faster than the bound disproves it. The solver searches for one if all provers
run, and briefly if a certificate does not prove its bound.
"""

import threading
import time
from dataclasses import dataclass, replace
from enum import StrEnum

from synth.certificate import Certificate
from synth.errors import SynthError
from synth.objective import BoundScope
from synth.partition_costs import partition_costs
from synth.plan.partition.bounds import PartitionBounds, applies
from synth.plan.partition.stage_table import StageTable
from synth.plan.recompute.given_stages import solve_recomputing
from synth.plan.recompute.layer_bounds import bounds_of_every_choice
from synth.plan.recompute.stages import bounds, bounds_of_any_choice, recomputed, without_recompute
from synth.plan.reprove.recheck_partitions import own_certificate, recheck_all
from synth.plan.tuning import REPROVE
from synth.profile import Profile
from synth.recomputed_layers import recomputing
from synth.schedule.files.claim import NOT_SEARCHED
from synth.schedule.files.plan_file import Plan
from synth.schedule.model import Placement, Schedule
from synth.schedule.simulate import Timeline
from synth.schedule.weight_flow import Route
from synth.solver.bounds.closed_form import work_bound_us
from synth.solver.bounds.recheck import Recheck, recheck
from synth.solver.instance.memory_models import relaxed_for_fusion
from synth.solver.options import Part, SolveOptions
from synth.solver.problem import Problem
from synth.solver.result import Incumbent, Result, StoppedBy, relative_gap
from synth.solver.solver import solve
from synth.solver.weights.travel import TravelProblem, WeightMovement
from synth.solver.weights.travel_bounds import prove_travel

# Slow heuristics are left out; the quick ones may disprove a bound.
_WITHOUT = frozenset({Part.SHORT_INSTANCE, Part.MODULO, Part.WINDOWS, Part.ROBUSTNESS})

# Left out if a bound is only to be disproved.
_NO_PROOFS = frozenset({Part.BOUNDS, Part.EXACT})

_ANY_STAGES = "whichever stages recompute"


class ProofVerdict(StrEnum):
    """The outcome of proving a bound again."""

    PROVEN = "proven again"
    OPEN = "not within the limit"
    FALSE = "false"


@dataclass(frozen=True)
class Reproof:
    """The outcome for a plan, and its scope.

    Attributes:
        verdict: of the claim, as far as `holds_for` goes.
        reached_us: the bound that was proven here.
        holds_for: the schedules that the bound was proven for.
        on_trust: the part of the claim that is not verified here; None: all of it is verified.
        witness_us: the value of a schedule that is below the claimed bound, if one was found.
        seconds: the time spent.
        proven_from: the provers used, in words.
        is_refuted: the plan's certificate does not prove the bound, whether or not it holds.
    """

    verdict: ProofVerdict
    reached_us: int
    holds_for: str
    on_trust: str | None = None
    witness_us: int | None = None
    seconds: float = 0.0
    proven_from: str = ""
    is_refuted: bool = False

    @property
    def is_proven(self) -> bool:
        """True if the claim is proven as far as `holds_for` goes."""
        return self.verdict == ProofVerdict.PROVEN


def reprove(
    plan: Plan,
    timeline: Timeline,
    options: SolveOptions,
    profile: Profile | None = None,
    stop: threading.Event | None = None,
    *,
    all_provers: bool = False,
) -> Reproof:
    """Prove the bound of a checked plan again.

    Args:
        plan: a checked plan.
        timeline: of its schedule.
        options: the time limit, the workers and the seed.
        profile: that of the plan, for bounds of all partitions.
        stop: set it to end early with what is proven then.
        all_provers: run them all, as if the plan had no certificate.
    """
    if all_provers:
        plan = plan.replace(claim=plan.claim.replace(certificate=None))
    return _Reproving(plan, timeline, options, profile, stop or threading.Event()).run()


class _Reproving:
    def __init__(
        self,
        plan: Plan,
        timeline: Timeline,
        options: SolveOptions,
        profile: Profile | None,
        stop: threading.Event,
    ) -> None:
        self.plan, self.timeline, self.profile, self.stop = plan, timeline, profile, stop
        self.options = replace(options, without=options.without | _WITHOUT)
        self.claimed_us = plan.claim.lower_bound_us
        self.objective = plan.claim.judged_by
        self.schedule = plan.schedule()
        self.witness_us: int | None = None
        self.proven_from = "closed forms"
        self.is_refuted = False
        self.began = time.monotonic()

    def run(self) -> Reproof:
        """Prove the claim with the prover of its kind."""
        if self.plan.claim.stopped_by == NOT_SEARCHED:
            work_us = self.objective.iterations * max(self.timeline.work_us)
            return self._verdict(work_us, "schedules with the same ops")
        if self.schedule.weights is not None:
            return self._of_travelling()
        plain = without_recompute(self.schedule)
        if not plain.keeps_saved:
            return self._verdict(0, "nothing: the schedule moves activations or weights")
        stages = recomputed(self.schedule)
        is_auto = self.plan.arguments.get("recompute") == "auto"
        if stages or (is_auto and self.plan.caps_bytes is not None):
            return self._with_recompute(stages, is_auto)
        scope = self.plan.claim.bound_holds_for
        if scope == BoundScope.ALL and self.profile is not None and applies(self.problem):
            as_run = recomputing(self.profile, self.plan.recomputed_layers or ())
            return self._of_all(as_run, plain)
        reached_us = self._prove_own(plain)
        on_trust = None if scope == BoundScope.PARTITION else f"that it holds for {scope.words}"
        return self._verdict(reached_us, BoundScope.PARTITION.words, on_trust)

    def _of_travelling(self) -> Reproof:
        """Prove a bound of schedules whose weights travel as these do, by closed forms."""
        flow = self.schedule.weights
        is_gathered = flow is not None and flow.weights == Route.GATHER
        movement = WeightMovement.GATHER if is_gathered else WeightMovement.RING
        proven = prove_travel(TravelProblem(self.problem, movement))
        scope = self.plan.claim.bound_holds_for
        on_trust = None if scope == BoundScope.PARTITION else f"that it holds for {scope.words}"
        holds_for = f"weights that travel by {movement}, in {BoundScope.PARTITION.words}"
        return self._verdict(proven.bound_us, holds_for, on_trust)

    @property
    def problem(self) -> Problem:
        """The problem that the plan solves."""
        plan = self.plan
        return Problem(
            plan.costs,
            Placement(plan.placement),
            plan.num_micro_batches,
            plan.caps_bytes,
            self.objective,
            plan.partition,
        )

    def _verdict(self, reached_us: int, holds_for: str, on_trust: str | None = None) -> Reproof:
        verdict = ProofVerdict.PROVEN if reached_us >= self.claimed_us else ProofVerdict.OPEN
        if self.witness_us is not None:
            verdict = ProofVerdict.FALSE
        seconds = time.monotonic() - self.began
        return Reproof(
            verdict,
            reached_us,
            holds_for=holds_for,
            on_trust=on_trust,
            witness_us=self.witness_us,
            seconds=seconds,
            proven_from=self.proven_from,
            is_refuted=self.is_refuted,
        )

    def _left_s(self) -> float:
        return self.options.time_limit_s - (time.monotonic() - self.began)

    def _is_over(self) -> bool:
        return self.stop.is_set() or self.witness_us is not None or self._left_s() <= 0

    def _note(self, value_us: int | None) -> None:
        """Note that a schedule of this value exists."""
        if value_us is not None and value_us < self.claimed_us:
            self.witness_us = value_us

    def _with_recompute(self, stages: list[int], is_auto: bool) -> Reproof:
        """Prove a bound with recomputation by closed forms, over all choices if that is claimed."""
        on_trust = None
        any_us = self.objective.value_us(bounds_of_any_choice(self.problem))
        if is_auto:
            reached_us, holds_for, on_trust = self._of_every_choice(any_us)
        elif any_us >= self.claimed_us:
            reached_us, holds_for = any_us, f"this partition, {_ANY_STAGES}"
        else:
            reached_us = self.objective.value_us(bounds(self.problem, stages))
            holds_for = "this partition, in which these stages recompute"
        if reached_us < self.claimed_us:
            found = solve_recomputing(self.problem, stages, self.options, None, self.stop)
            self._note(found.value_us)
        return self._verdict(reached_us, holds_for, on_trust)

    def _of_every_choice(self, any_us: int) -> tuple[int, str, str | None]:
        """Return the bound over every choice, its scope, and the part taken on trust.

        Args:
            any_us: of every choice of stages, with the layers recomputed that the plan lists.
        """
        if self.profile is None:
            given = ", with its layers recomputed," if self.plan.recomputed_layers else ","
            on_trust = "that it holds whichever layers are recomputed; --profile tells"
            return any_us, f"this partition{given} {_ANY_STAGES}", on_trust
        costs = partition_costs(self.profile, self.plan.partition)
        problem = replace(self.problem, costs=costs, profile=self.profile)
        every_us = self.objective.value_us(bounds_of_every_choice(problem))
        if every_us < self.claimed_us <= any_us and not self.plan.recomputed_layers:
            # Plans from older versions, without a choice of layers, claim as much.
            return any_us, f"this partition, {_ANY_STAGES}", None
        return every_us, "this partition, whichever layers and stages are recomputed", None

    def _prove_own(self, begin: Schedule) -> int:
        """Prove the claim for the plan's partition; return the bound reached."""
        certificate = own_certificate(self.plan.claim.certificate, self.plan.partition)
        if certificate is None:
            return self._raise(self.problem, begin, self.options.time_limit_s)
        limited = replace(self.options, time_limit_s=self._left_s())
        return self._take(
            recheck(self.problem, certificate, self.claimed_us, limited, self.stop.is_set),
            certificate,
            begin,
        )

    def _take(self, found: Recheck, certificate: Certificate, begin: Schedule) -> int:
        """Return the bound reached; look for a schedule that disproves a claim that was not."""
        if found == Recheck.PROVEN:
            is_closed = self._closed_us >= self.claimed_us and not certificate.partitions
            self.proven_from = "closed forms" if is_closed else certificate.words
            return self.claimed_us
        if found == Recheck.REFUTED:
            self.is_refuted = True
            self._look_for_witness(begin)
        return self._closed_us

    @property
    def _closed_us(self) -> int:
        return work_bound_us(relaxed_for_fusion(self.problem), self.objective)

    def _look_for_witness(self, begin: Schedule) -> None:
        """Look for a schedule below the bound with the quick heuristics."""
        if self._is_over():
            return
        without = self.options.without | _NO_PROOFS
        options = replace(self.options, time_limit_s=self._left_s(), without=without)
        best_us = self.objective.value_us(self.timeline)
        found = self._search(self.problem, begin, best_us, options)
        self._note(found.value_us)

    def _raise(self, problem: Problem, begin: Schedule | None, limit_s: float) -> int:
        """Prove the claimed bound for one partition, as far as time allows."""
        self.proven_from = "all provers"
        reached_us = work_bound_us(relaxed_for_fusion(problem), self.objective)
        until_s = time.monotonic() + min(limit_s, self._left_s())
        best_us = self.objective.value_us(self.timeline)
        while reached_us < self.claimed_us and not self._is_over():
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                break
            options = replace(self.options, time_limit_s=left_s)
            found = self._search(problem, begin, best_us, options)
            self._note(found.value_us)
            reached_us = max(reached_us, found.lower_bound_us)
            if found.stopped_by == StoppedBy.INFEASIBLE:
                return self.claimed_us  # infeasible, so no schedule beats it
            if found.stopped_by != StoppedBy.GAP or found.value_us is None:
                break
            # A better schedule closed the gap before the bound was reached.
            begin, best_us = found.schedule, found.value_us
        return reached_us

    def _search(
        self, problem: Problem, begin: Schedule | None, best_us: int, options: SolveOptions
    ) -> Result:
        """Search until the gap is that between the best known schedule and the claimed bound."""
        ended = _Either(self.stop)
        gap = max(0.0, relative_gap(best_us, self.claimed_us))
        options = replace(options, gap=gap, hint=begin)

        def look(incumbent: Incumbent) -> None:
            self._note(incumbent.value_us)
            if self._is_over() or incumbent.lower_bound_us >= self.claimed_us:
                ended.set()

        try:
            return solve(problem, options, look, ended)
        except SynthError:
            # The plan runs micro-batches out of order, which the search for a period excludes.
            return solve(problem, replace(options, hint=None), look, ended)

    def _of_all(self, profile: Profile, begin: Schedule) -> Reproof:
        """Prove a bound over all partitions: the plan's, then those that runs leave open."""
        holds_for = BoundScope.ALL.words
        certificate = self.plan.claim.certificate
        if certificate is not None:
            limited = replace(self.options, time_limit_s=self._left_s())
            all_bounds = PartitionBounds(StageTable(profile), self.problem)
            found = recheck_all(all_bounds, certificate, self.claimed_us, limited, self._is_over)
            return self._verdict(self._take(found, certificate, begin), holds_for)
        share = REPROVE.own_partition_share
        least_us = self._raise(self.problem, begin, share * self.options.time_limit_s)
        if least_us < self.claimed_us:
            return self._verdict(least_us, holds_for)
        all_bounds, proven = (
            PartitionBounds(StageTable(profile), self.problem),
            {self.plan.partition},
        )
        while not self._is_over():
            part = replace(self.options, time_limit_s=share * self._left_s(), gap=0.0)
            least = all_bounds.raise_least(self.claimed_us, proven, part, self._is_over).least
            if least.sizes is None or least.bound_us >= self.claimed_us:
                return self._verdict(self.claimed_us, holds_for)
            least_us = self._raise(all_bounds.problem_on(least.sizes), None, self._left_s())
            if least_us < self.claimed_us:
                return self._verdict(least_us, holds_for)
            proven.add(least.sizes)
        return self._verdict(min(least_us, all_bounds.least(proven).bound_us), holds_for)


class _Either(threading.Event):
    """An event that is set when another one is, too."""

    def __init__(self, other: threading.Event) -> None:
        super().__init__()
        self._other = other

    def is_set(self) -> bool:
        """Return True if one of the two is set."""
        return super().is_set() or self._other.is_set()
