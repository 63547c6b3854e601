"""The problem without a flush: a problem, and the rule by which ops read versions of weights."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import count

from synth.errors import SynthError
from synth.families import family_placement, generate
from synth.families._lib.updates import with_updates
from synth.op_kinds import OpKind
from synth.schedule.model import Buffering, Schedule
from synth.schedule.ops import Op
from synth.schedule.verify_weights import check_parameters_known
from synth.schedule.weight_versions import BackwardReads, ForwardReads, WeightVersions
from synth.solver.instance.memory_models import relaxed_memory
from synth.solver.problem import Problem
from synth.solver.tuning import FLUSH_FREE
from synth.units import shown

_EVERY = re.compile(r"every=([1-9][0-9]{0,5})")
_KNOWN = "2bw, 2bw:every=8, stash, vertical, none or none:every=8"


class Consistency(StrEnum):
    """The choice of `synth solve --versions`.

    2bw       an update every k micro-batches, two versions (PipeDream-2BW)
    stash     an update after each, F reads the newest version, B that of F (weight stashing)
    vertical  the same, but all stages read the version that the first stage read
    none      nothing is stashed: F and B read the newest version (delayed update, PACI)
    """

    TWO_VERSIONS = "2bw"
    STASH = "stash"
    VERTICAL = "vertical"
    NONE = "none"

    @property
    def takes_batches(self) -> bool:
        """True if an update may take the gradients of several micro-batches."""
        return self in (Consistency.TWO_VERSIONS, Consistency.NONE)

    def rule(self, every: int) -> WeightVersions:
        """The versions that ops read, with an update after `every` micro-batches."""
        forward, backward = {
            Consistency.TWO_VERSIONS: (ForwardReads.PREVIOUS_BATCH, BackwardReads.STASHED),
            Consistency.STASH: (ForwardReads.NEWEST, BackwardReads.STASHED),
            Consistency.VERTICAL: (ForwardReads.VERTICAL, BackwardReads.STASHED),
            Consistency.NONE: (ForwardReads.NEWEST, BackwardReads.NEWEST),
        }[self]
        return WeightVersions(every, forward, backward)


def parse_consistency(text: str) -> tuple[Consistency, int | None]:
    """Parse a choice of versions, and the micro-batches of an update if they are given.

    Raises:
        SynthError: it is not understood.
    """
    name, colon, option = text.strip().lower().partition(":")
    every = _EVERY.fullmatch(option)
    if name not in [*map(str, Consistency)] or bool(colon) != bool(every):
        raise SynthError(f"§versions {shown(text)} is not understood; give {_KNOWN}")
    return Consistency(name), int(every[1]) if every else None


@dataclass(frozen=True)
class FlushFreeProblem:
    """A problem whose pipeline is never flushed.

    An update directly follows the last W of its batch.

    Attributes:
        problem: costs, placement with one copy of each stage, micro-batches, memory limits.
        consistency: the choice of versions.
        every: micro-batches of an update, a divisor of those of the problem. With two versions
            there are at least two updates, as else no op reads the second version.

    Raises:
        SynthError: there are copies of stages, the profile does not know the parameters' bytes, or
            `every` does not go with the choice or the micro-batches.
    """

    problem: Problem
    consistency: Consistency
    every: int = 1

    def __post_init__(self) -> None:
        # The versions of each stage's parameters are its own.
        own = replace(self.problem, costs=self.problem.costs.untied())
        object.__setattr__(self, "problem", own)
        m = self.problem.num_micro_batches
        _check_one_copy(self.problem, self.consistency)
        if self.every < 1 or m % self.every:
            raise SynthError(
                f"an update after every {self.every} micro-batches does not divide {m} of them; "
                f"give a divisor"
            )
        if self.every > 1 and not self.consistency.takes_batches:
            raise SynthError(
                f"§versions {self.consistency} updates after every micro-batch; for an update "
                f"every {self.every} give 2bw:every={self.every} or none:every={self.every}"
            )
        if self.consistency == Consistency.TWO_VERSIONS and m // self.every < 2:
            raise SynthError(
                f"§versions {self.name} needs at least two updates, and {m} micro-batches make "
                f"one; give §micro_batches {2 * self.every}, or an update after fewer of them"
            )
        check_parameters_known(self.problem.costs)

    @classmethod
    def parse(cls, text: str, problem: Problem) -> "FlushFreeProblem":
        """Make the problem of a choice as it is written: `2bw`, `2bw:every=8`, `stash`.

        Raises:
            SynthError: it is not understood, or does not go with the problem.
        """
        return cls.of(problem, *parse_consistency(text))

    @classmethod
    def of(
        cls, problem: Problem, consistency: Consistency, every: int | None = None
    ) -> "FlushFreeProblem":
        """Make the problem, with as few micro-batches for an update as cost no time if none given.

        With two versions these are at least those in flight at the interval that the work allows
        without memory limits, and at least the ranks, as 2BW's paper asks for.

        Raises:
            SynthError: as for the problem itself, or the micro-batches make no two such updates.
        """
        if every is None:
            every = 1
            if consistency == Consistency.TWO_VERSIONS:
                _check_one_copy(problem, consistency)
                every = _least_for_two_versions(problem)
        return cls(problem, consistency, every)

    @classmethod
    def following(cls, problem: Problem, rule: WeightVersions) -> "FlushFreeProblem":
        """Make the problem of a rule.

        Raises:
            SynthError: no choice has this rule, or it does not go with the problem.
        """
        for consistency in Consistency:
            if consistency.rule(rule.every) == rule:
                return cls(problem, consistency, rule.every)
        raise SynthError(
            f"no §versions has F read {rule.forward} and B read {rule.backward}; give {_KNOWN}"
        )

    @property
    def rule(self) -> WeightVersions:
        """The versions that ops read."""
        return self.consistency.rule(self.every)

    @property
    def name(self) -> str:
        """The choice as it is written: `2bw:every=8`, `stash`."""
        if self.consistency == Consistency.TWO_VERSIONS or self.every > 1:
            return f"{self.consistency}:every={self.every}"
        return self.consistency

    def step_us(self, stage: int) -> float:
        """The time of a stage's update for each micro-batch."""
        return self.problem.costs.stages[stage].duration_us[OpKind.STEP] / self.every

    @property
    def stashed_to_try(self) -> range:
        """Versions but the newest that a stage may hold, from none to one for each rank."""
        match self.consistency:
            case Consistency.NONE:
                return range(1)
            case Consistency.TWO_VERSIONS:
                return range(1, 2)
            case Consistency.STASH | Consistency.VERTICAL:
                return range(1, max(2, self.problem.num_ranks))

    def schedule(self, programs: Sequence[Sequence[Op]], buffering: Buffering) -> Schedule:
        """The schedule of an order of F, B, W and BW, with the updates put in."""
        updated = tuple(map(tuple, with_updates(programs, self.every)))
        made = Schedule(
            self.problem.placement, self.problem.num_micro_batches, updated, f"solved {self.name}"
        )
        return replace(made, buffering=buffering, versions=self.rule)

    def published(self) -> list[Schedule]:
        """The published schedules on this placement that follow the same rule."""
        problem, found = self.problem, []
        for name in self._published_names():
            if family_placement(name, problem.num_ranks) != problem.placement:
                continue
            numbers = problem.num_ranks, problem.num_micro_batches
            try:
                made = generate(name, *numbers, costs=problem.costs, caps_bytes=problem.caps_bytes)
            except SynthError:
                continue  # its definition does not admit these numbers
            found.append(made)
        return found

    def _published_names(self) -> tuple[str, ...]:
        return {
            Consistency.TWO_VERSIONS: (f"2bw:every={self.every}",),
            Consistency.STASH: ("pipedream",),
            Consistency.VERTICAL: ("pipedream:vertical",),
            Consistency.NONE: (
                f"paci:every={self.every}",
                *(("delayed-update",) if self.every == 1 else ()),
            ),
        }[self.consistency]


def _check_one_copy(problem: Problem, consistency: Consistency) -> None:
    if problem.num_replicas > 1:
        raise SynthError(
            f"§versions {consistency} is for one copy of each stage, and the placement "
            f"has {problem.num_replicas}; give linear, looped:N, v or wave:N"
        )


def _least_for_two_versions(problem: Problem) -> int:
    """The fewest micro-batches of an update that leave room for all that are in flight.

    Raises:
        SynthError: no such number divides the problem's micro-batches into two updates or more.
    """
    least, m = _most_in_flight(problem), problem.num_micro_batches
    fitting = _divisor(m, least)
    if fitting is None:
        enough = next(number for number in count(m + 1) if _divisor(number, least))
        raise SynthError(
            f"§versions 2bw needs at least two updates of {least} micro-batches or more each, and "
            f"{m} micro-batches cannot be divided so; give §micro_batches {enough}, or "
            f"2bw:every=k with a smaller k"
        )
    return fitting


def _divisor(number: int, least: int) -> int | None:
    """The least divisor of a number from `least` on that is at most half of it."""
    return next((k for k in range(least, number // 2 + 1) if number % k == 0), None)


def _most_in_flight(problem: Problem) -> int:
    """The micro-batches in flight on the first stage if the busiest rank is always busy.

    A few more give ops room to wait for each other.
    """
    instance = relaxed_memory(replace(problem, caps_bytes=None))
    work_us = max(sum(instance[copy].work_us for copy in held) for held in instance.held)
    trip_us = instance[0].work_us + instance.round_trip_us[0]
    least = -(-trip_us // max(1, work_us)) + FLUSH_FREE.more_in_flight
    return max(problem.num_ranks, least)
