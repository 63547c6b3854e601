"""The request of `synth solve`: the problem, and all that a plan file records besides."""

from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from synth.errors import ExitCode, SynthError
from synth.objective import HasSpans
from synth.options.deadline import Deadline
from synth.options.memory_limit import MemoryLimit
from synth.options.values import AUTO, EVEN
from synth.plan.choose.candidates import Candidate, Partitioning
from synth.plan.claim import claim_of
from synth.plan.runtimes import DEFAULT, Allowed
from synth.plan.weight_passing.data_parallel_plan import SharesExceedLimit, of_all, problem_of_all
from synth.profile import Profile
from synth.profile.throughput import Throughput, throughput
from synth.records.safe_write import is_stream
from synth.schedule.files.plan_file import Plan
from synth.search.outcome import StoppedBy
from synth.solver.options import SolveOptions
from synth.solver.problem import Problem
from synth.solver.result import Incumbent, Result
from synth.system.messages import talk
from synth.units import counted


@dataclass(frozen=True)
class Request:
    """A problem with all that a plan file records about it.

    `recompute` are the stages that recompute; None: chosen by the search. `costs_from` is the
    profile of the search, with the listed layers recomputed and the optimizer state shared; None:
    it is `profile`. The problem is that of one of `num_pipelines` side by side. `unsearched` are
    candidates on placements, or with orders, that are not searched, to say what they would gain.
    """

    profile: Profile
    partition: tuple[int, ...]
    problem: Problem
    options: SolveOptions
    limit: MemoryLimit
    arguments: dict[str, str]
    output: Path | None
    recompute: tuple[int, ...] | None = ()
    deadline: Deadline = field(default_factory=Deadline.unlimited)
    costs_from: Profile | None = None
    num_pipelines: int = 1
    unsearched: tuple[Candidate, ...] = ()
    allowed: Allowed = DEFAULT

    @property
    def as_run(self) -> Profile:
        """The profile of the costs before the search chooses any layers."""
        return self.costs_from or self.profile

    @property
    def partitioning(self) -> Partitioning:
        """Way in which the model is partitioned; on ranks of unequal speed `even` gives it."""
        known = {AUTO: Partitioning.SEARCHED}
        if self.profile.rank_speeds is None:
            known[EVEN] = Partitioning.EVEN
        return known.get(self.arguments["partition"], Partitioning.GIVEN)

    def throughput(self, spans: HasSpans) -> Throughput:
        """Return tokens per second and MFU of a schedule of the problem."""
        problem = self.problem
        per_s = problem.objective.iterations_per_s(spans)
        return throughput(per_s, problem.num_micro_batches, problem.num_ranks, self.profile)

    def over_ideal(self, spans: HasSpans) -> float:
        """Return how much longer a schedule takes than ranks that are never idle, as a share."""
        problem = self.problem
        ideal_us = self.profile.ideal_us(problem.num_micro_batches, problem.num_ranks)
        return problem.objective.over_ideal(spans, ideal_us)

    def on(self, problem: Problem) -> "Request":
        """Return the request for another partition or placement."""
        assert problem.partition is not None
        return replace(self, problem=problem, partition=problem.partition)

    def of(self, found: Incumbent | Result) -> "Request":
        """Return the request for the problem of a solution, under the limit found with it."""
        request, memory = self.on(found.problem), found.memory
        if memory is None or memory.cap_bytes is None:
            return request
        limit = MemoryLimit(found.problem.caps_bytes, memory.explanation)
        return replace(request, limit=limit)

    def of_all_pipelines(self) -> "Request":
        """Return the request for the ranks of all data-parallel pipelines."""
        if self.num_pipelines == 1:
            return self
        whole = problem_of_all(self.problem, self.profile, self.num_pipelines)
        return replace(self, problem=whole, num_pipelines=1)

    def plan(self, found: Incumbent | Result) -> Plan:
        """Return the plan file of a solution, for the ranks of all pipelines."""
        whole = self.of_all_pipelines()
        solution = of_all(found, whole.problem, self.num_pipelines, self.options.gap)
        assert solution.schedule is not None
        return Plan.of(
            self.profile,
            self.partition,
            solution.schedule,
            claim=claim_of(solution, whole.problem, self.options),
            caps_bytes=whole.problem.caps_bytes,
            arguments=self.arguments,
            recomputed_layers=self.problem.recomputed_layers,
        )

    def save_so_far(self, found: Incumbent | Result) -> None:
        """Write the plan file unless it is a stream, which gets the last plan only.

        A schedule that all data-parallel pipelines have no room for is not written.
        """
        if self.output is not None and not is_stream(self.output):
            with suppress(SharesExceedLimit):
                self.save(found)

    def save(self, found: Incumbent | Result) -> None:
        """Write the plan file if asked for."""
        if self.output is not None:
            self.plan(found).save(self.output)


def announce(request: Request) -> None:
    """Report the problem on stderr before the search."""
    problem = request.problem
    held = f" as {','.join(map(str, request.partition))}"
    if problem.num_replicas > 1 or problem.placement.num_stages != problem.num_ranks:
        held += f" ({request.arguments['placement']})"
    announce_sizes(request, held)


def announce_sizes(request: Request, held: str = "") -> None:
    """Report the size of the problem, and its partition."""
    speeds = request.profile.rank_speeds
    if speeds is not None:
        held += f" of speed {','.join(f'{speed:g}' for speed in speeds)}"
    talk(
        f"{request.profile.name}: {counted(len(request.profile.layers), 'layer')} on "
        f"{counted(request.problem.num_ranks, 'rank')}{held}, "
        f"{counted(request.problem.num_micro_batches, 'micro-batch')}; {request.limit.explanation}"
    )


class NoSchedule(SynthError):
    """No schedule was found; the exit code shows whether that is proven."""

    def __init__(self, result: Result) -> None:
        codes = {
            StoppedBy.INFEASIBLE: ExitCode.INFEASIBLE,
            StoppedBy.INTERRUPT: ExitCode.INTERRUPTED,
        }
        code = codes.get(result.stopped_by, ExitCode.NOTHING_FOUND)
        super().__init__(result.message or "no schedule was found", code)
