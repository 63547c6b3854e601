"""What `synth solve` was asked: the problem, and how a solution becomes a schedule file."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from synth import __version__
from synth.cli.limits import MemoryLimit
from synth.cli.output import talk
from synth.errors import ExitCode
from synth.profile import Profile

if TYPE_CHECKING:
    from synth.schedule.file import Plan
    from synth.solve.problem import Incumbent, Problem, Result, SolveOptions, StoppedBy

STILL_SEARCHING = "nothing yet: the search went on when this was written"


@dataclass(frozen=True)
class Request:
    """A problem with everything about it that a schedule file tells.

    `recompute` are the stages that recompute, None: as serves best.
    """

    profile: Profile
    partition: tuple[int, ...]
    problem: "Problem"
    options: "SolveOptions"
    limit: MemoryLimit
    arguments: dict[str, str]
    output: Path | None
    recompute: tuple[int, ...] | None = ()

    def plan(self, found: "Incumbent | Result") -> "Plan":
        """The schedule file of a solution."""
        from synth.schedule.file import Claim, Plan

        schedule, timeline, peaks = found.schedule, found.timeline, found.peak_bytes
        assert schedule is not None and timeline is not None and peaks is not None
        assert found.gap is not None and found.found_by is not None
        claim = Claim(
            objective=str(self.problem.objective),
            makespan_us=timeline.makespan_us,
            period_us=timeline.period_us,
            peak_bytes=peaks,
            lower_bound_us=found.lower_bound_us,
            gap=found.gap,
            found_by=found.found_by,
            stopped_by=_stopped_by(found),
            seed=self.options.seed,
            # The same input gives the same file.
            solve_seconds=None if self.options.deterministic else _seconds(found),
            synth_version=__version__,
        )
        return Plan.of(
            self.profile,
            self.partition,
            schedule,
            claim=claim,
            caps_bytes=self.problem.caps_bytes,
            arguments=self.arguments,
        )

    def save(self, found: "Incumbent | Result") -> None:
        """Write the file, if one was asked for."""
        if self.output is not None:
            self.plan(found).save(self.output)


def announce(request: Request) -> None:
    """Say on stderr what is about to be searched."""
    problem = request.problem
    held = ""
    if problem.num_replicas > 1 or problem.placement.num_stages != problem.num_ranks:
        held = f" ({request.arguments['placement']})"
    talk(
        f"{request.profile.name}: {len(request.profile.layers)} layers on {problem.num_ranks} "
        f"ranks as {','.join(map(str, request.partition))}{held}, {problem.num_micro_batches} "
        f"micro-batches; {request.limit.explanation}"
    )


def _stopped_by(found: "Incumbent | Result") -> str:
    from synth.solve.problem import Result

    return found.stopped_by.value if isinstance(found, Result) else STILL_SEARCHING


def _seconds(found: "Incumbent | Result") -> float:
    from synth.solve.problem import Result

    return round(found.wall_s if isinstance(found, Result) else found.elapsed_s, 3)


def failure_code(stopped_by: "StoppedBy") -> ExitCode:
    """The exit code of a search that ended without what was asked for."""
    from synth.solve.problem import StoppedBy

    codes = {
        StoppedBy.INFEASIBLE: ExitCode.INFEASIBLE,
        StoppedBy.INTERRUPT: ExitCode.INTERRUPTED,
    }
    return codes.get(stopped_by, ExitCode.NOTHING_FOUND)
