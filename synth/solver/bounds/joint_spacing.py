"""Joint spacing: least times within which forwards of both copies of the model start.

    rank q         | F .. F .. .. .. .. .. F .. F ..      stage s of one copy
    rank n - 1 - q | .. F .. F .. .. .. F .. .. .. F      stage s of the other
                     |<--- g(2, 2) --->|

In a bidirectional pipeline two ranks hold the same two stages, and a micro-batch of one copy waits
for the memory that one of the other holds. In any schedule, some consecutive micro-batches of each
copy keep the caps without all others, and wait for nothing more without them. So from the first to
the last start of their forwards of a stage it takes at least what it takes where they are alone (a
minimum time lag, as in `forward_spacing`). Which copy's forward is first and last may differ, so a
joint spacing is four conditional differences in a model of all micro-batches. They let it refute
values that it leaves open without them (notes/solver.md).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from synth.objective import Objective
from synth.schedule.files.certificate import JointSpacing
from synth.solver.bounds.rechecker import Rechecker
from synth.solver.cpsat.model import ExactModel
from synth.solver.cpsat.op_variables import OpVariables
from synth.solver.cpsat.or_tools import cp_model
from synth.solver.cpsat.parameters import search_from_below
from synth.solver.cpsat.run import run
from synth.solver.cpsat.spans import Minimised
from synth.solver.instance.instance import B, F, Instance, OpIndex, W
from synth.solver.instance.stage_copy import StageCopy
from synth.solver.options import SolveOptions
from synth.solver.tuning import EXACT_MODEL, JOINT_SPACING

# Forwards of a stage by copy of the model.
Counts = tuple[int, int]


def is_worth(instance: Instance) -> bool:
    """Return True if memory is limited, and micro-batches of each copy of the model are many."""
    limited = any(headroom is not None for headroom in instance.headroom_bytes)
    fewest = min(copy.num_micro_batches for copy in instance.copies)
    return limited and fewest >= JOINT_SPACING.fewest_micro_batches and applies(instance)


def applies(instance: Instance) -> bool:
    """Return True if each rank holds stages of two copies, and memory never goes negative.

    A micro-batch that is left out must not have held less than nothing, on any stage.
    """
    deltas = (copy.delta_bytes for copy in instance.copies)
    are_held = all(min(e[F], e[F] + e[B], e[F] + e[B] + e[W]) >= 0 for e in deltas)
    num_copies = len({copy.replica for copy in instance.copies})
    return are_held and num_copies == 2 and len(instance) == 2 * instance.num_ranks


def ranks_of(instance: Instance, stage: int) -> tuple[int, ...]:
    """Return the ranks that hold a stage."""
    return tuple(sorted({copy.rank for copy in instance.copies if copy.stage == stage}))


def is_mirrored(instance: Instance) -> bool:
    """Return True if the copies of the model may change places.

    They have equal times, links, bytes and micro-batches, and equal limits on their ranks.
    """
    by_stage: dict[int, list[int]] = {}
    for index, copy in enumerate(instance.copies):
        by_stage.setdefault(copy.stage, []).append(index)
    to: dict[int, int] = {}
    for one, other in by_stage.values():
        first, second = instance[one], instance[other]
        if _without_place(first) != _without_place(second):
            return False
        pairs = ((first.rank, second.rank), (second.rank, first.rank))
        if any(to.setdefault(rank, mirror) != mirror for rank, mirror in pairs):
            return False
    headroom = instance.headroom_bytes
    return all(headroom[rank] == headroom[mirror] for rank, mirror in to.items())


def _without_place(copy: StageCopy) -> StageCopy:
    return copy._replace(rank=0, replica=0, first=0, above=None, below=None)


@dataclass
class JointSpacings:
    """Joint spacings of a stage, proven for every schedule of an instance.

    Attributes:
        least_us: by the forwards of each copy, the least time from the first start to the last.
        ranks: modelled in all proofs.
    """

    stage: int = 0
    ranks: tuple[int, ...] = ()
    least_us: dict[Counts, int] = field(default_factory=dict)

    def lemmas(self) -> tuple[JointSpacing, ...]:
        """Return all of them, in the order in which they were proven."""
        return tuple(
            JointSpacing(stage=self.stage, num_forwards=counts, least_us=us, ranks=self.ranks)
            for counts, us in self.least_us.items()
        )

    def are_of(self, ranks: Iterable[int], instance: Instance) -> bool:
        """Return True if a model of some ranks has their forwards."""
        return bool(self.least_us) and set(ranks_of(instance, self.stage)) <= set(ranks)

    def add_to(self, ops: OpVariables) -> None:
        """Add all of them to a model with the stage's forwards."""
        if not self.are_of(ops.ranks, ops.instance):
            return
        ways = {False: self.least_us}
        if is_mirrored(ops.instance):
            ways[True] = {(b, a): us for (a, b), us in self.least_us.items() if a != b}
        forwards = _forwards(ops, self.stage)
        order = _Order(ops.cp, forwards)
        for least_us in ways.values():
            for counts, us in least_us.items():
                _add(order, counts, us)
        order.close()


class _Order:
    """Literals for the order of two forwards of different copies."""

    def __init__(self, cp: cp_model.CpModel, forwards: list[list[cp_model.LinearExpr]]) -> None:
        self.cp, (self.first, self.second) = cp, forwards
        self._before: dict[Counts, cp_model.IntVar] = {}

    def before(self, one: int, other: int) -> cp_model.IntVar:
        """Return the literal that one of the first copy is no later than one of the second."""
        if (one, other) not in self._before:
            literal = self.cp.new_bool_var("")
            early, late = self.first[one], self.second[other]
            self.cp.add(early <= late).only_enforce_if(literal)
            self.cp.add(late <= early).only_enforce_if(literal.negated())
            self._before[one, other] = literal
        return self._before[one, other]

    def close(self) -> None:
        """Add what the order of each copy's own forwards implies."""
        for (one, other), literal in self._before.items():
            if (later := self._before.get((one, other + 1))) is not None:
                self.cp.add_implication(literal, later)
            if (later := self._before.get((one + 1, other))) is not None:
                self.cp.add_implication(later, literal)


def _add(order: _Order, counts: Counts, us: int) -> None:
    """Add a joint spacing for all forwards of both copies that are near to each other in number."""
    cp, first, second = order.cp, order.first, order.second
    if 0 in counts:
        starts, count = (first, counts[0]) if counts[0] else (second, counts[1])
        for early, late in zip(starts, starts[count - 1 :], strict=False):
            cp.add(late - early >= us)
        return
    for one in range(len(first) - counts[0] + 1):
        near = range(one - JOINT_SPACING.farthest, one + JOINT_SPACING.farthest + 1)
        for other in near:
            last_one, last_other = one + counts[0] - 1, other + counts[1] - 1
            if other < 0 or last_other >= len(second):
                continue
            begins, ends = order.before(one, other), order.before(last_one, last_other)
            cases = (
                (second[last_other] - first[one], begins, ends),
                (first[last_one] - first[one], begins, ends.negated()),
                (second[last_other] - second[other], begins.negated(), ends),
                (first[last_one] - second[other], begins.negated(), ends.negated()),
            )
            for distance, *literals in cases:
                cp.add(distance >= us).only_enforce_if(literals)


def _forwards(ops: OpVariables, stage: int) -> list[list[cp_model.LinearExpr]]:
    """Return by copy of the model the starts of its forwards of a stage."""
    found = []
    for index in ops.instance.copies_of(stage):
        count = ops.instance[index].num_micro_batches
        found.append([ops.start[index, OpIndex(F, k)] for k in range(count)])
    return found


def _alone(instance: Instance, stage: int, counts: Counts) -> Instance:
    """Return the instance with few micro-batches, for which the stages above take no time.

    There is no telling when they reach the stage, nor how far apart.
    """
    copies = []
    for copy in instance.copies:
        few = copy._replace(num_micro_batches=counts[copy.replica])
        if copy.stage < stage:
            no_time = dict.fromkeys(copy.duration_us, 0)
            few = few._replace(
                duration_us=no_time, down_us=0, up_us=0, passing_us=None, again_us=0, lead_us=0
            )
        copies.append(few)
    return replace(instance, copies=tuple(copies))


def spacing_model(
    instance: Instance, ranks: Iterable[int], stage: int, counts: Counts, known: JointSpacings
) -> ExactModel:
    """Make the model of the least time from the first forward of a stage to the last.

    Args:
        ranks: those modelled; they hold the stage, and none above it.
        counts: micro-batches of each copy of the model.
        known: shorter joint spacings of the same stage.
    """
    alone = _alone(instance, stage, counts)
    longest_us = sum(
        copy.num_micro_batches * (copy.work_us + copy.down_us + copy.up_us) for copy in alone.copies
    )

    def minimise(ops: OpVariables) -> Minimised:
        value = ops.cp.new_int_var(0, longest_us, "apart")
        for starts in filter(None, _forwards(ops, stage)):
            ops.cp.add(value >= starts[-1])
        known.add_to(ops)
        ops.cp.minimize(value)
        return Minimised(value)

    return ExactModel(
        alone,
        Objective.MAKESPAN,
        longest_us,
        ranks,
        passing_pairs=True,
        minimise=minimise,
        most_counted=EXACT_MODEL.most_counted_ops_of_few_ranks,
        tune=search_from_below,
    )


@dataclass
class JointSpacingProver:
    """Proves the joint spacings of a stage, those of few forwards first.

    The stage is one whose two ranks need nearly most time for a few forwards; the pair of a stage
    below it that needs most is modelled with them.

    Attributes:
        known: those proven so far, to which this adds; without ranks the stage is chosen.
    """

    instance: Instance
    options: SolveOptions
    should_stop: Callable[[], bool]
    known: JointSpacings

    def prove(self, limit_s: float) -> float:
        """Prove until a time is over; return the seconds spent.

        Args:
            limit_s: seconds of the clock, or deterministic ones.
        """
        left_s = limit_s
        if not self.known.ranks:
            left_s -= self._choose(left_s)
        mirrored = is_mirrored(self.instance)
        for counts in _all_counts(self.instance, mirrored=mirrored):
            if left_s <= 0 or self.should_stop():
                break
            if counts in self.known.least_us:
                continue
            least_us, spent_s = self._least_us(self.known, counts, left_s)
            left_s -= spent_s
            if least_us is None:
                break
            self.known.least_us[counts] = least_us
        return limit_s - left_s

    def _choose(self, limit_s: float) -> float:
        """Choose the stage and the ranks; return the seconds spent."""
        left_s, found = limit_s, []
        few = JOINT_SPACING.first_forwards
        least = min(copy.num_micro_batches for copy in self.instance.copies)
        counts = (min(few, least), min(few, least))
        for stage in range((self.instance.num_ranks + 1) // 2):
            ranks = ranks_of(self.instance, stage)
            if len(ranks) != 2 or min(self._stages_on(ranks)) < stage:
                continue
            spacings = JointSpacings(stage, ranks)
            least_us, spent_s = self._least_us(spacings, counts, left_s)
            left_s -= spent_s
            found.append((least_us or 0, stage, ranks))
        found.sort(reverse=True)
        if found:
            near_us = JOINT_SPACING.nearly_most * found[0][0]
            near = [(stage, ranks) for least_us, stage, ranks in found if least_us >= near_us]
            stage, ranks = min(near)
            below = [other for _, below, other in found if below > stage]
            chosen = tuple(sorted({*ranks, *(below[0] if below else ())}))
            self.known.stage, self.known.ranks = stage, chosen
        return limit_s - left_s

    def _stages_on(self, ranks: Iterable[int]) -> set[int]:
        return {copy.stage for copy in self.instance.copies if copy.rank in ranks}

    def _least_us(
        self, known: JointSpacings, counts: Counts, limit_s: float
    ) -> tuple[int | None, float]:
        """Return a proven least time, None if little was proven, and the seconds spent."""
        if not known.ranks:
            return None, 0.0
        began_s = time.monotonic()
        model = spacing_model(self.instance, known.ranks, known.stage, counts, known)
        outcome = run(
            model,
            replace(self.options, workers=1),
            JOINT_SPACING.share_of_one * limit_s,
            should_stop=self.should_stop,
            began_s=began_s,
        )
        return outcome.bound_us if outcome.optimal else None, outcome.spent_s


def _all_counts(instance: Instance, *, mirrored: bool) -> Iterator[Counts]:
    """Yield numbers of forwards of both copies, few ones first, and nearly as many of each."""
    most = [0, 0]
    for copy in instance.copies:
        most[copy.replica] = copy.num_micro_batches
    for total in range(2, sum(most) // 2 + 1, 2):
        for more in range(0, JOINT_SPACING.most_uneven + 1):
            one = total // 2 + more
            for counts in ((one, total - one), (total - one, one)):
                is_within = min(counts) >= 0 and counts[0] <= most[0] and counts[1] <= most[1]
                if is_within and (counts[0] >= counts[1] or not mirrored):
                    yield counts
                if not more:
                    break


def recheck_joint_spacings(lemmas: Iterable[JointSpacing], again: Rechecker) -> JointSpacings:
    """Prove joint spacings of a certificate one after the other, each with those before.

    Raises:
        RecheckEnded: one of them has no proof.
    """
    known = JointSpacings()
    for lemma in lemmas:
        ranks, instance = again.ranks(lemma.ranks), again.instance
        again.require(applies(instance))
        held = {copy.stage for copy in instance.copies if copy.rank in ranks}
        most = {copy.replica: copy.num_micro_batches for copy in instance.copies}
        again.require(not known.ranks or (known.stage, known.ranks) == (lemma.stage, ranks))
        again.require(set(ranks_of(instance, lemma.stage)) <= set(ranks))
        again.require(min(held) >= lemma.stage)
        again.require(all(lemma.num_forwards[which] <= most[which] for which in (0, 1)))
        known.stage, known.ranks = lemma.stage, ranks
        model = spacing_model(instance, ranks, lemma.stage, lemma.num_forwards, known)
        again.refute_below(model, lemma.least_us)
        known.least_us[lemma.num_forwards] = lemma.least_us
    return known
