"""Proving the bound that a plan claims again, by the solver's own provers and within a time limit.

A certificate in the plan names the prover and its models. Only these are solved again
(`synth.solver.bounds.recheck`), and nothing in it is trusted. Without one all provers run.
The scope of the bound decides how it is proven:

    not searched, or  the largest work of a rank, of schedules with the same ops, in which every F
    F and BW at once  runs at once with a BW if one does
    weight passing    closed forms over all schedules with the same kind of weight passing
    without a flush   bounds of all orders with such versions
    data parallel     one of the pipelines that share optimizer state, as below
    offloads          closed forms with memory and the host's links; else as below, without limits
    R in it, or auto  closed forms in which no B waits for its R; auto: whichever layers too
    this partition    closed forms; then the solver, begun from the plan, until it has the bound
    all partitions    this one as above, the others by bounds of runs of layers, one by one the rest

A schedule that is faster than the bound disproves it. The solver searches for one if all provers
run, and briefly if a certificate does not prove its bound.
"""

import threading
from dataclasses import replace

from synth.costs.partition_costs import partition_costs
from synth.costs.recomputed_layers import recomputing
from synth.objective import BoundScope
from synth.option_names import named
from synth.plan.offload.bound_of_answer import has_guests
from synth.plan.offload.lower_bound import offload_bound_us
from synth.plan.offload.offloaded import without_moves
from synth.plan.partition.bounds import PartitionBounds, applies
from synth.plan.partition.stage_cost_table import StageCostTable
from synth.plan.recompute.choice_proof import CERTIFICATE, ChoiceProof
from synth.plan.recompute.given_stages import solve_recomputing
from synth.plan.recompute.layer_bounds import bounds_of_every_choice
from synth.plan.recompute.layers_in_place import layers_in_place, ops_allowed_by
from synth.plan.recompute.stages import bounds
from synth.plan.reprove.claim_search import ClaimSearch
from synth.plan.reprove.recheck_partitions import PartitionsRecheck, own_certificate
from synth.plan.reprove.reproof import ProofVerdict, Reproof
from synth.plan.reprove.reprove_versions import prove_versions
from synth.plan.runtimes import allowed_for
from synth.plan.tuning import REPROVE
from synth.plan.weight_passing.data_parallel_plan import (
    is_sharding_chosen,
    one_pipeline,
    sharing_optimizer,
)
from synth.profile import Profile
from synth.schedule.files.certificate import Certificate, ProverName
from synth.schedule.files.claim import SAME_OPS
from synth.schedule.files.plan_file import Plan
from synth.schedule.model import Schedule
from synth.schedule.recomputed_stages import recomputed, without_recompute
from synth.schedule.simulate import Timeline
from synth.schedule.verify import verify
from synth.schedule.weight_flow import Route
from synth.solver.bounds.closed_form import work_bound_us
from synth.solver.bounds.recheck import recheck
from synth.solver.bounds.rechecker import Recheck
from synth.solver.instance.memory_models import relaxed_for_fusion
from synth.solver.options import SolveOptions
from synth.solver.problem import Problem
from synth.solver.watch import SolveWatch
from synth.solver.weight_passing.bounds import prove_weight_passing
from synth.solver.weight_passing.exact_proof import ExactProof
from synth.solver.weight_passing.problem import WeightMovement, WeightPassingProblem
from synth.solver.weight_passing.small_problems import is_small, prove_exactly

_OWN = BoundScope.PARTITION
_ANY_STAGES = "whichever stages recompute"


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
        self.claimed_us = plan.claim.lower_bound_us
        self.objective = plan.claim.judged_by
        self.schedule = plan.schedule()
        self.proven_from = "closed forms"
        self.is_refuted = False
        best_us = self.objective.value_us(timeline)
        self.search = ClaimSearch(self.claimed_us, best_us, options, self.stop)
        self.options = self.search.options

    def run(self) -> Reproof:
        """Prove the claim with the prover of its kind."""
        if self.plan.bounds_same_ops:
            return self._of_same_ops()
        if self.schedule.weights is not None or one_pipeline(self.plan) is not None:
            return self._of_weight_passing()
        versions, steady = self.schedule.versions, self.plan.claim.steady
        if versions is not None and steady is not None:
            return self._verdict(*prove_versions(self.problem, versions, steady))
        if self.schedule.offloads:
            return self._with_offloads()
        found = self._of_plain()
        if self.plan.arguments.get("offload") == "true" and found.on_trust is None:
            return replace(found, on_trust="that it holds for schedules that offload, too")
        return found

    def _with_offloads(self) -> Reproof:
        """Prove a bound of schedules that offload, by closed forms or as if memory had no limit."""
        scope, is_plain = self.plan.claim.bound_holds_for, not recomputed(self.schedule)
        is_auto = self.plan.arguments.get("recompute") == "auto"
        counts_memory = is_plain and not is_auto and not has_guests(self.schedule)
        if scope != BoundScope.ALL and counts_memory:
            reached_us = offload_bound_us(self.problem)
            if reached_us >= self.claimed_us:
                on_trust = f"that it holds for {scope.words}" if scope != _OWN else None
                return self._verdict(reached_us, f"{_OWN.words}, also with offloads", on_trust)
        free = self.plan.replace(caps_bytes=None)
        of_free = _Reproving(free, self.timeline, self.options, self.profile, self.stop)
        of_free.schedule = without_moves(self.schedule)
        found = of_free._of_plain()
        return replace(found, holds_for=f"{found.holds_for}, without memory limits")

    def _of_plain(self) -> Reproof:
        """Prove a bound of schedules whose saved activations stay on their ranks."""
        plain = without_recompute(self.schedule)
        if not plain.keeps_saved:
            return self._verdict(0, "nothing: the schedule moves weights")
        stages = recomputed(self.schedule)
        is_auto = self.plan.arguments.get("recompute") == "auto"
        if stages or (is_auto and self.plan.caps_bytes is not None):
            return self._with_recompute(stages, is_auto)
        scope = self.plan.claim.bound_holds_for
        if scope == BoundScope.ALL and self.profile is not None and applies(self.problem):
            as_run = recomputing(self.profile, self.plan.recomputation)
            return self._of_all(as_run, plain)
        reached_us = self._prove_own(plain)
        on_trust = None if scope == BoundScope.PARTITION else f"that it holds for {scope.words}"
        return self._verdict(reached_us, BoundScope.PARTITION.words, on_trust)

    def _of_same_ops(self) -> Reproof:
        """Prove a bound by the largest work of a rank, which is a sum."""
        work_us = self.objective.iterations * self.timeline.least_us
        scope = self.plan.claim.bound_holds_for
        on_trust = None if scope == BoundScope.PARTITION else f"that it holds for {scope.words}"
        return self._verdict(work_us, SAME_OPS, on_trust)

    def _of_weight_passing(self) -> Reproof:
        """Prove a bound of schedules with the same kind of weight passing.

        Closed forms prove it, or the exact model if the bound rests on that. Data-parallel
        pipelines are as fast as one of them, except for collectives.
        """
        one = one_pipeline(self.plan)
        if one is not None:
            shared = None
            if self.profile is not None and not is_sharding_chosen(self.plan):
                shared = sharing_optimizer(self.profile, len(self.plan.placement))
            found = _Reproving(one, self.timeline, self.options, shared, self.stop).run()
            return replace(found, holds_for=f"each pipeline, in {found.holds_for}")
        flow = self.schedule.weights
        if flow is not None and flow.weights not in (Route.GATHER, Route.CHAIN):
            return self._of_same_ops()
        is_gathered = flow is not None and flow.weights == Route.GATHER
        movement = WeightMovement.GATHER if is_gathered else WeightMovement.RING
        passing = WeightPassingProblem(self.problem, movement)
        proven, certificate = prove_weight_passing(passing), self.plan.claim.certificate
        may_rest_on_model = certificate is None or certificate.prover == ProverName.EXACT
        if may_rest_on_model and proven.bound_us < self.claimed_us and is_small(passing):
            makespan_us, limit_s = self.timeline.makespan_us, self.search.clock.left_s()
            model = prove_exactly(passing, makespan_us, self.options, limit_s, self.stop.is_set)
            proven = model.proven(passing)
            self.proven_from = proven.certificate.words
            self._take_model(model, proven.bound_us)
        scope = self.plan.claim.bound_holds_for
        on_trust = None if scope == BoundScope.PARTITION else f"that it holds for {scope.words}"
        holds_for = f"weight passing by {movement}, in {BoundScope.PARTITION.words}"
        return self._verdict(proven.bound_us, holds_for, on_trust)

    def _take_model(self, model: ExactProof, bound_us: int) -> None:
        """Disprove the claim if the exact model has a smaller bound, or a schedule below it."""
        if model.is_complete and bound_us < self.claimed_us:
            self.is_refuted = self.plan.claim.certificate is not None
        if model.schedule is not None:
            problem = self.problem
            timeline = verify(model.schedule, problem.costs, problem.caps_bytes)[1]
            self.search.note(self.objective.value_us(timeline))

    @property
    def problem(self) -> Problem:
        """The problem that the plan solves."""
        plan = self.plan
        return Problem(
            plan.costs,
            plan.placed,
            plan.num_micro_batches,
            plan.caps_bytes,
            self.objective,
            plan.partition,
        )

    def _verdict(self, reached_us: int, holds_for: str, on_trust: str | None = None) -> Reproof:
        verdict = ProofVerdict.PROVEN if reached_us >= self.claimed_us else ProofVerdict.OPEN
        if self.search.witness_us is not None:
            verdict = ProofVerdict.FALSE
        return Reproof(
            verdict,
            reached_us,
            holds_for=holds_for,
            on_trust=on_trust,
            witness_us=self.search.witness_us,
            seconds=self.search.clock.elapsed_s,
            proven_from=self.proven_from,
            is_refuted=self.is_refuted,
        )

    def _with_recompute(self, stages: list[int], is_auto: bool) -> Reproof:
        """Prove a bound with recomputation, over all choices if that is claimed."""
        on_trust = None
        any_us = self.objective.value_us(bounds_of_every_choice(self.problem))
        if is_auto:
            reached_us, holds_for, on_trust = self._of_every_choice(any_us)
        elif any_us >= self.claimed_us:
            reached_us, holds_for = any_us, f"this partition, {_ANY_STAGES}"
        else:
            reached_us = self.objective.value_us(bounds(self.problem, stages))
            holds_for = "this partition, in which these stages recompute"
        if reached_us < self.claimed_us:
            found = solve_recomputing(
                self.problem, stages, self.options, SolveWatch(stop=self.stop)
            )
            self.search.note(found.value_us)
        return self._verdict(reached_us, holds_for, on_trust)

    def _of_every_choice(self, any_us: int) -> tuple[int, str, str | None]:
        """Return the bound over every choice, its scope, and the part taken on trust.

        Args:
            any_us: the bound of every choice of stages, with the layers recomputed that the plan
                lists.
        """
        if self.profile is None:
            given = ", with its layers recomputed," if self.plan.recomputed_layers else ","
            on_trust = named("that it holds whichever layers are recomputed; §profile tells")
            reached_us = any_us if any_us >= self.claimed_us else self._by_parts(self.problem)
            return max(any_us, reached_us), f"this partition{given} {_ANY_STAGES}", on_trust
        costs = partition_costs(self.profile, self.plan.partition, self.plan.placement)
        allowed = allowed_for(self.plan.arguments.get("for"))
        menu = allowed.layer_menu
        problem = replace(self.problem, costs=costs, profile=self.profile, layer_menu=menu)
        further_ops = ops_allowed_by(self.profile, problem.further_ops)
        unrepeatable = frozenset(layers_in_place(self.profile))
        problem = replace(problem, further_ops=further_ops, unrepeatable=unrepeatable)
        every_us = self.objective.value_us(bounds_of_every_choice(problem))
        if every_us < self.claimed_us <= any_us and not self.plan.recomputed_layers:
            # Plans from older versions, without a choice of layers, claim as much.
            return any_us, f"this partition, {_ANY_STAGES}", None
        if every_us < self.claimed_us and menu is None:
            every_us = max(every_us, self._by_parts(problem))
        which = "layers and stages are recomputed"
        if menu is not None:
            which = f"of {allowed.runtime}'s rules recomputes layers"
        return every_us, f"this partition, whichever {which}", None

    def _by_parts(self, problem: Problem) -> int:
        """Return the bound of every choice by models of parts of them, at most the claim."""
        self.proven_from = CERTIFICATE.words
        stopped = self.search.is_over
        proof = ChoiceProof(problem, self.options, lambda: self.claimed_us, stopped)
        for _ in proof.prove(self.search.clock.left_s()):
            pass
        return proof.bound_us

    def _prove_own(self, begin: Schedule) -> int:
        """Prove the claim for the plan's partition; return the bound reached."""
        certificate = own_certificate(self.plan.claim.certificate, self.plan.partition)
        if certificate is None:
            self.proven_from = "all provers"
            return self.search.raise_bound(self.problem, begin, self.options.time_limit_s)
        options, claimed_us = self.search.remaining, self.claimed_us
        found = recheck(self.problem, certificate, claimed_us, options, self.stop.is_set)
        return self._take(found, certificate, begin)

    def _take(self, found: Recheck, certificate: Certificate, begin: Schedule) -> int:
        """Return the bound reached; look for a schedule that disproves a claim that was not."""
        if found == Recheck.PROVEN:
            is_closed = self._closed_us >= self.claimed_us and not certificate.partitions
            self.proven_from = "closed forms" if is_closed else certificate.words
            return self.claimed_us
        if found == Recheck.REFUTED:
            self.is_refuted = True
            self.search.look_for_witness(self.problem, begin)
        return self._closed_us

    @property
    def _closed_us(self) -> int:
        return work_bound_us(relaxed_for_fusion(self.problem), self.objective)

    def _of_all(self, profile: Profile, begin: Schedule) -> Reproof:
        """Prove a bound over all partitions: the plan's, then those that runs leave open."""
        holds_for = BoundScope.ALL.words
        certificate = self.plan.claim.certificate
        if certificate is not None:
            all_bounds = PartitionBounds(StageCostTable(profile), self.problem)
            checking = PartitionsRecheck(all_bounds, certificate, self.search)
            return self._verdict(self._take(checking.run(), certificate, begin), holds_for)
        self.proven_from = "all provers"
        share = REPROVE.own_partition_share
        least_us = self.search.raise_bound(self.problem, begin, share * self.options.time_limit_s)
        if least_us < self.claimed_us:
            return self._verdict(least_us, holds_for)
        all_bounds, proven = (
            PartitionBounds(StageCostTable(profile), self.problem),
            {self.plan.partition},
        )
        while not self.search.is_over():
            part = replace(self.options, time_limit_s=share * self.search.clock.left_s(), gap=0.0)
            least = all_bounds.raise_least(self.claimed_us, proven, part, self.search.is_over).least
            if least.sizes is None or least.bound_us >= self.claimed_us:
                return self._verdict(self.claimed_us, holds_for)
            least_us = self.search.raise_bound(
                all_bounds.problem_on(least.sizes), None, self.search.clock.left_s()
            )
            if least_us < self.claimed_us:
                return self._verdict(least_us, holds_for)
            proven.add(least.sizes)
        return self._verdict(min(least_us, all_bounds.least(proven).bound_us), holds_for)
