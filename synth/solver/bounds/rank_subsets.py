"""Rank-subset relaxation: exact models of all ops of a few ranks, with other ranks as delays."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar, Self

from synth.objective import Objective
from synth.schedule.files.certificate import Certificate, ProvenBound, ProverName
from synth.solver.bounds.bound import BoundSetting, Reference, rank_by_rank
from synth.solver.bounds.closed_form import work_bounds
from synth.solver.bounds.destructive import Decision, DestructiveBounds, Ranks
from synth.solver.bounds.forward_spacing import far_apart, recheck_spacings
from synth.solver.bounds.forward_spacing_model import Spacings
from synth.solver.bounds.joint_spacing import recheck_joint_spacings
from synth.solver.bounds.known_order import attained_us
from synth.solver.bounds.rank_sets import by_promise, is_worth_alone, least_sets, num_ops, wider
from synth.solver.bounds.rechecker import Rechecker
from synth.solver.cpsat.model import ExactModel
from synth.solver.cpsat.op_variables import OpVariables
from synth.solver.cpsat.or_tools import cp_model
from synth.solver.cpsat.run import ModelOutcome, TimedBounds, decide, run, search_from_below
from synth.solver.instance.in_flight import in_flight_caps
from synth.solver.instance.instance import B, F, Instance, OpIndex
from synth.solver.options import Part, SolveOptions
from synth.solver.tuning import CPSAT, DESTRUCTIVE, EXACT_MODEL, RANK_SUBSETS


@dataclass
class RankSubsets:
    """Bounds from models of some ranks, first of the least sets, then of growing ones.

    The other ranks become delays: F k cannot arrive before its head and k F's of the slowest stage
    above, B k not before F k's round trip, and after B k a rank above still has its own B's and
    W's left. Every schedule satisfies all of this, so any bound of the part bounds the whole. Where
    memory binds, a few ranks that are far apart prove nearly the whole bound, because their ops
    have to agree over the length of the pipeline.

    Attributes:
        reference: called at the beginning of each proof for the best value known then.
        should_stop: polled during each proof.
        proven_by: by set of ranks, its bound, where it was above the best one known before.
        spacings: proven distances between forwards of the first stage.
        proven_us: the best bound so far; each proof begins there and raises it.
        attained_us: by set of ranks, a value that a model of them alone attains.
        left_open: by set of ranks, the values and the efforts of questions without an answer.
    """

    part: ClassVar[Part] = Part.RANK_SUBSETS
    prover: ClassVar[ProverName] = ProverName.RANKS

    instance: Instance
    objective: Objective
    options: SolveOptions
    reference: Callable[[], Reference]
    should_stop: Callable[[], bool]
    proven_by: dict[Ranks, int] = field(default_factory=dict)
    spacings: Spacings = field(default_factory=Spacings)
    proven_us: int = 0
    attained_us: dict[Ranks, int] = field(default_factory=dict)
    left_open: dict[Ranks, list[tuple[int, float]]] = field(default_factory=dict)

    @classmethod
    def of(cls, setting: BoundSetting) -> Self:
        """Begin from the best bound known."""
        return cls(
            setting.instance,
            setting.objective,
            setting.exact_options,
            setting.reference,
            setting.should_stop,
            setting.known.proven_by,
            setting.known.spacings,
            setting.known.bound_us,
            setting.known.attained_us,
            setting.known.left_open,
        )

    @property
    def bound_us(self) -> int:
        """The best bound so far, or that with which the proofs began."""
        return self.proven_us

    def one_by_one(self, limit_s: float) -> Iterator[ProvenBound]:
        """Yield bounds from the least sets of ranks; end early where questions raise nothing.

        Where there are joint spacings, the ranks that they are of are asked first.

        Args:
            limit_s: for all of them; seconds of the clock, or deterministic ones.
        """

        ranks = by_promise(self.instance, self.objective)
        least = least_sets(self.instance, ranks)
        if spaced := [one for one in least if self.spacings.joint.are_of(one, self.instance)]:
            share_s = RANK_SUBSETS.spaced_share * limit_s
            limit_s -= yield from self.destructive(spaced, share_s, is_brief=True)
        if self._is_worth_asking(least):
            yield from self.destructive(least, limit_s, is_brief=True)
            return

        def prove(rank: int, limit_s: float) -> tuple[ProvenBound, float]:
            known_us = self.proven_us
            outcome = self.alone(rank, limit_s)
            if outcome.bound_us > known_us:
                self.proven_by[rank,] = outcome.bound_us
            return self._proven(outcome.bound_us, (rank,)), outcome.spent_s

        share = RANK_SUBSETS.first_rank_share
        yield from rank_by_rank(ranks, share, limit_s, prove, self.should_stop)

    def _is_worth_asking(self, sets: Sequence[Ranks]) -> bool:
        """Return True if refuting values proves more than minimising, in the same time.

        Small models are minimised sooner than some questions are asked.
        """
        is_large = max(num_ops(self.instance, ranks) for ranks in sets) >= DESTRUCTIVE.fewest_ops
        return self.instance.holds_several and is_large and len(sets[0]) < self.instance.num_ranks

    def destructive(
        self, sets: Sequence[Ranks], limit_s: float, *, is_brief: bool = False
    ) -> TimedBounds:
        """Yield bounds by refuting values; return the seconds spent (see `bounds.destructive`)."""
        effort_s = CPSAT.clock_s_per_deterministic_s if self.options.deterministic else 1.0
        left_s = effort_s * limit_s
        for ranks in sets:
            if ranks not in self.attained_us and left_s > 0 and not self.should_stop():
                left_s -= self._attain_in_order(ranks)
        # A set that attains little can prove no more than that.
        most_first = sorted(sets, key=lambda ranks: -self.attained_us.get(ranks, 1 << 60))
        bounds = DestructiveBounds(
            most_first,
            self.proven_us,
            self.reference().value_us,
            self.decide,
            left_s,
            self.should_stop,
            self.attained_us,
            has_raised=not self.proven_by.keys().isdisjoint(sets),
            left_open=self.left_open,
        )
        for ranks, bound_us in bounds.run(is_brief=is_brief):
            self.proven_us = bound_us
            self.proven_by[ranks] = bound_us
            yield self._proven(bound_us, ranks)
        return limit_s - bounds.left_s / effort_s

    def _attain_in_order(self, ranks: Ranks) -> float:
        """Note what some ranks attain in the order of the best schedule known; return what it took.

        Few ranks prove something, and the others would be asked in vain what this answers.
        What it says is no proof: it decides what is asked.
        """
        value_us, timing = self.reference()
        if timing is None:
            return 0.0
        began_s = time.monotonic()
        # An order that is known keeps the limits.
        free = replace(self.instance, headroom_bytes=(None,) * self.instance.num_ranks)
        model = model_of(free, self.objective, value_us, ranks, self.spacings, passing_pairs=False)
        if (attained := attained_us(model, timing)) is not None:
            self.attained_us[ranks] = attained
        return 0.0 if self.options.deterministic else time.monotonic() - began_s

    def decide(self, ranks: Ranks, value_us: int, effort_s: float) -> Decision:
        """Decide whether some ranks keep within a value."""
        began_s = time.monotonic()
        if self.instance.longest_us(self.objective, value_us) < 0:
            return Decision(None, is_refuted=True, spent_s=0.0)
        model = self._model(value_us, ranks)
        if model.infeasible:
            return Decision(None, is_refuted=True, spent_s=0.0)
        model.cp.proto.clear_objective()
        asked = model.cp, effort_s, self.options.seed, self.should_stop
        answer = decide(*asked, presolves=False)
        attained_us = None if answer.found is None else answer.found.value(model.value)
        clock_s = time.monotonic() - began_s
        spent_s = answer.spent_s if self.options.deterministic else clock_s
        return Decision(attained_us, answer.is_refuted, spent_s)

    def alone(self, rank: int, limit_s: float) -> ModelOutcome:
        """Bound by one rank; never above the reference's value."""
        return self._solve((rank,), limit_s)

    def prove(self, limit_s: float) -> TimedBounds:
        """Yield bounds from a growing set of ranks, each time by the rank that raises it most.

        Where ranks hold several stages, the least sets come first, until nothing is open. Sets of
        two and three ranks get a share of the time. The rest goes to all ranks at once, or to
        growing sets where all would be too many ops. Where spacings are known, the sets of two and
        three are ranks far apart. A second call begins again with the best set, and each model with
        the best bound.
        """
        left_s, ranks = limit_s, by_promise(self.instance, self.objective)
        least = least_sets(self.instance, ranks)
        if self._is_worth_asking(least) and is_worth_alone(self.instance):
            left_s -= yield from self.destructive(least, RANK_SUBSETS.share * left_s)
        alone: list[Ranks] = [(rank,) for rank in ranks]
        chosen = max((*alone, *least), key=lambda one: self.proven_by.get(one, 0))
        while tried := wider(self.instance, chosen, self.spacings):
            if left_s <= 0 or self.should_stop():
                break
            share_s = left_s * self._share(tried)
            is_asked = self._is_worth_asking(tried) and len(tried[0]) <= RANK_SUBSETS.few_ranks
            raised = self.destructive if is_asked else self._minimised
            left_s -= yield from raised(tried, share_s)
            chosen = max(tried, key=lambda one: self.proven_by.get(one, 0))
        return limit_s - left_s

    def _minimised(self, sets: Sequence[Ranks], limit_s: float) -> TimedBounds:
        """Yield the bound of each set's model, all with as much time; return the seconds spent."""
        spent_s = 0.0
        for ranks in sets:
            limit_of_one_s = max(limit_s / len(sets), RANK_SUBSETS.shortest_trial_s)
            outcome = self._solve(ranks, limit_of_one_s)
            spent_s += outcome.spent_s
            self.proven_by[ranks] = outcome.bound_us
            yield self._proven(outcome.bound_us, ranks)
            if self.should_stop():
                break
        return spent_s

    def _share(self, tried: list[Ranks]) -> float:
        """Return the share of the remaining time for these sets."""
        if len(tried[0]) == self.instance.num_ranks:
            return 1.0
        is_far = self.spacings.say_more and tried[0] == far_apart(self.instance, 2)
        return RANK_SUBSETS.far_apart_share if is_far else RANK_SUBSETS.share

    def _solve(self, ranks: Ranks, limit_s: float) -> ModelOutcome:
        began_s = time.monotonic()
        value_us, hint = self.reference()
        model = self._model(value_us, ranks)
        model.at_least(min(self.proven_us, value_us))
        if hint is not None:
            model.hint(hint, value_us)
        outcome = run(model, self.options, limit_s, should_stop=self.should_stop, began_s=began_s)
        bound_us = value_us if outcome.infeasible else min(outcome.bound_us, value_us)
        self.proven_us = max(self.proven_us, bound_us)
        return replace(outcome, bound_us=bound_us)

    def _model(self, value_us: int, ranks: Ranks) -> ExactModel:
        """Make the exact model of some ranks within a value."""
        has_pairs = Part.PASSING_PAIRS not in self.options.without and len(ranks) > 1
        if has_pairs:
            self.options.report_part(Part.PASSING_PAIRS)
        return model_of(
            self.instance,
            self.objective,
            value_us,
            ranks,
            self.spacings,
            passing_pairs=has_pairs,
            closed_forms=Part.CLOSED_FORMS not in self.options.without,
        )

    def _proven(self, bound_us: int, ranks: Ranks) -> ProvenBound:
        """Certify a bound. An earlier bound is no lemma: it only says where the search begins."""
        first = self.instance[0]
        lemmas = self.spacings.lemmas(first.last) if first.rank in ranks else ()
        joint = self.spacings.joint
        counts = (c.num_micro_batches for c in self.instance.copies if c.rank in ranks)
        certificate = Certificate(
            prover=self.prover,
            ranks=ranks,
            num_micro_batches=max(counts),
            forward_spacings=lemmas,
            joint_spacings=joint.lemmas() if joint.are_of(ranks, self.instance) else (),
        )
        return ProvenBound(bound_us, certificate)

    @classmethod
    def recheck(cls, certificate: Certificate, again: Rechecker) -> None:
        """Prove the spacings, then that the model of the ranks has no value below the claim."""
        ranks = again.ranks(certificate.ranks)
        known = recheck_spacings(certificate.forward_spacings, again)
        known.joint = recheck_joint_spacings(certificate.joint_spacings, again)
        model = model_of(again.instance, again.objective, again.claimed_us - 1, ranks, known)
        again.refute_below(model, again.claimed_us)


def model_of(
    instance: Instance,
    objective: Objective,
    value_us: int,
    ranks: Ranks,
    spacings: Spacings,
    *,
    passing_pairs: bool = True,
    closed_forms: bool = True,
) -> ExactModel:
    """Make the exact model of some ranks, with the spacings that are known.

    Args:
        value_us: upper limit of the objective.
        passing_pairs: let ops pass each other on omitted ranks one at a time.
        closed_forms: begin from the closed forms of all ranks.
    """
    # In a model of so few ranks memory can be counted for more ops of each.
    are_few = len(ranks) <= RANK_SUBSETS.few_ranks
    model = ExactModel(
        instance,
        objective,
        value_us,
        ranks,
        passing_pairs=passing_pairs and len(ranks) > 1,
        most_counted=(
            EXACT_MODEL.most_counted_ops_of_few_ranks if are_few else EXACT_MODEL.most_counted_ops
        ),
        tune=partial(_tune, num_ranks=len(ranks)),
    )
    if closed_forms and objective.is_sum:
        model.both_at_least(work_bounds(instance))
    _add_caps_in_flight(model.ops)
    if (0, OpIndex(F, 0)) in model.ops.start:
        spacings.add_to(model.ops, model.spans)
    spacings.joint.add_to(model.ops)
    return model


def _add_caps_in_flight(ops: OpVariables) -> None:
    """Let F's wait for B's where memory requires it; this follows from the limit, and propagates.

    The caps are proven in `instance.in_flight`. Where a rank holds one stage, all its memory is
    such precedences already.
    """
    for copy, freed, most in in_flight_caps(ops.instance):
        if copy in ops.copies and not ops.instance.is_alone(copy):
            for k in range(most, ops.instance[copy].num_micro_batches):
                ops.cp.add(ops.start[copy, OpIndex(F, k)] >= ops.end(freed, OpIndex(B, k - most)))


def _tune(parameters: cp_model.SatParameters, num_ranks: int) -> None:
    """Search from below, with precedence literals where several ranks are modelled."""
    search_from_below(parameters)
    if num_ranks >= RANK_SUBSETS.ranks_with_precedence_literals:
        parameters.use_strong_propagation_in_disjunctive = True
        parameters.max_size_to_create_precedence_literals_in_disjunctive = (
            RANK_SUBSETS.most_ops_with_precedence_literals
        )


BOUND = RankSubsets
