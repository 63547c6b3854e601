"""The candidates of `--weights` under any memory limit."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from synth.errors import SynthError
from synth.plan.choose.candidates import Candidate
from synth.plan.recompute.choice import limits_bytes
from synth.plan.weight_passing.choice import WeightPassingCandidate
from synth.plan.weight_passing.data_parallel import DATA_PARALLEL, data_parallel
from synth.schedule.model import Placement
from synth.solver.problem import Problem
from synth.solver.weight_passing import least_memory
from synth.solver.weight_passing.problem import WeightPassingProblem


@dataclass(frozen=True)
class WeightCandidates:
    """Problems with weight passing, at least one, and pipelines whose weights stay.

    If there are pipelines, data parallelism is one more candidate, as in a search.
    """

    weight_passing: tuple[WeightPassingCandidate, ...]
    staying: tuple[Candidate, ...] = ()

    @property
    def problem(self) -> Problem:
        """The problem of the first candidate."""
        return self.weight_passing[0].passing.problem

    @property
    def is_one(self) -> bool:
        """True if there is no choice."""
        return len(self.weight_passing) == 1 and not self.staying

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all candidates."""
        names = [one.name for one in self.weight_passing] + [one.name for one in self.staying]
        return (*names, DATA_PARALLEL) if self.staying else tuple(names)

    @property
    def partitions(self) -> tuple[tuple[int, ...], ...]:
        """The layers of each stage, of all candidates in the order of their names."""
        problems = [one.passing.problem for one in self.weight_passing]
        problems += [one.problem for one in self.staying]
        # Data parallelism has the stages of the first candidate.
        problems += problems[:1] if self.staying else []
        return tuple(problem.partition or () for problem in problems)

    def within(self, caps_bytes: tuple[int, ...] | None) -> "WeightCandidates":
        """Return the candidates under other memory limits."""
        return WeightCandidates(
            tuple(
                WeightPassingCandidate(
                    name,
                    WeightPassingProblem(
                        replace(passing.problem, caps_bytes=caps_bytes), passing.movement
                    ),
                )
                for name, passing in self.weight_passing
            ),
            tuple(one.on(replace(one.problem, caps_bytes=caps_bytes)) for one in self.staying),
        )

    def problem_of(self, placement: Placement, partition: tuple[int, ...] | None) -> Problem:
        """Return the problem of the candidate with a placement and a partition."""
        problems = [one.passing.problem for one in self.weight_passing]
        problems += [one.problem for one in self.staying]
        return next(
            problem
            for problem in problems
            if problem.placement == placement and partition in (None, problem.partition)
        )

    def limits_bytes(self) -> tuple[int, int]:
        """Return a limit that every schedule of all candidates exceeds below, and one that is kept.

        Raises:
            SynthError: no schedule is known.
        """
        pairs = list(self._limits())
        kept = [least for _, least in pairs if least is not None]
        if not kept:
            raise SynthError(
                f"no schedule of {', '.join(self.names)} can run; take other ranks or micro-batches"
            )
        return min(never for never, _ in pairs), min(kept)

    def _limits(self) -> Iterator[tuple[int, int | None]]:
        for _, passing in self.weight_passing:
            yield least_memory.limits_bytes(passing)
        for one in self.staying:
            yield limits_bytes(one.problem, one.choice)
        copies = data_parallel(self.problem) if self.staying else None
        if copies is not None:
            yield max(copies.peak_bytes), max(copies.peak_bytes)
