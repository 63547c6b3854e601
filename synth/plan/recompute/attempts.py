"""The results of a search for recomputation so far, one for each choice and partition."""

from typing import NamedTuple, Self

from synth.costs.recomputation import Recomputation
from synth.plan.recompute.choice_proof import ChoiceProof
from synth.plan.tuning import RECOMPUTE_TRIALS
from synth.search.outcome import rank_key
from synth.solver.problem import Problem
from synth.solver.result import Result


class ChoiceKey(NamedTuple):
    """A choice of recomputation: layers within B, stages by R, on a partition."""

    partition: tuple[int, ...] | None
    layers: Recomputation
    stages: tuple[int, ...]

    @classmethod
    def of(cls, problem: Problem, stages: tuple[int, ...]) -> Self:
        """Return that of a problem with stages that have an R."""
        return cls(problem.partition, problem.recomputed_layers, stages)


class ChoiceAttempt(NamedTuple):
    """Result on a partition with some stages recomputing; the problem says which layers are."""

    problem: Problem
    stages: tuple[int, ...]
    found: Result

    @property
    def choice(self) -> ChoiceKey:
        """The choice of recomputation."""
        return ChoiceKey.of(self.problem, self.stages)


class ChoiceAttempts:
    """The best attempt of each choice, from which a later search on the problem goes on.

    Attributes:
        proof: the bound of every choice on the problem's partition; None: not begun.
    """

    def __init__(self) -> None:
        self._by_choice: dict[ChoiceKey, ChoiceAttempt] = {}
        self.proof: ChoiceProof | None = None

    @property
    def best(self) -> ChoiceAttempt | None:
        """The attempt with the best value; of equals the first one."""
        return next(iter(self._ranked()), None)

    def near(self) -> list[ChoiceAttempt]:
        """Return the best few attempts whose values are near the best; any if there is no value."""
        ranked = self._ranked()
        least_us = ranked[0].found.value_us if ranked else None
        if least_us is not None:
            most_us = RECOMPUTE_TRIALS.near_factor * least_us
            values = ((one, one.found.value_us) for one in ranked)
            ranked = [one for one, us in values if us is not None and us <= most_us]
        return ranked[: RECOMPUTE_TRIALS.few]

    def of(self, problem: Problem, stages: tuple[int, ...]) -> ChoiceAttempt | None:
        """Return the attempt with a choice, if there is one."""
        return self._by_choice.get(ChoiceKey.of(problem, stages))

    def take(self, new: ChoiceAttempt) -> None:
        """Keep an attempt unless that choice has a better one."""
        old = self._by_choice.get(new.choice)
        if old is None or rank_key(new.found.value_us) <= rank_key(old.found.value_us):
            self._by_choice[new.choice] = new

    def _ranked(self) -> list[ChoiceAttempt]:
        return sorted(self._by_choice.values(), key=lambda one: rank_key(one.found.value_us))
