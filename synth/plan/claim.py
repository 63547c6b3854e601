"""The claim of a plan file, made from the result of a search."""

from synth.schedule.files.claim import IN_STEADY_STATE, STILL_SEARCHING, Claim, SteadyClaim
from synth.solver.options import SolveOptions
from synth.solver.problem import Problem
from synth.solver.result import Incumbent, Result
from synth.version import __version__


def claim_of(found: Incumbent | Result, problem: Problem, options: SolveOptions) -> Claim:
    """The figures, the proof and the provenance of a schedule that was found for a problem."""
    timeline, peaks = found.timeline, found.peak_bytes
    assert timeline is not None and peaks is not None
    assert found.gap is not None and found.found_by is not None
    return Claim(
        objective=str(problem.objective),
        makespan_us=timeline.makespan_us,
        period_us=timeline.period_us,
        peak_bytes=peaks,
        lower_bound_us=found.lower_bound_us,
        gap=found.gap,
        bound_holds_for=found.bound_scope,
        certificate=found.certificate,
        found_by=found.found_by,
        stopped_by=_why_it_stopped(found),
        seed=options.seed,
        # The same input gives the same file.
        solve_seconds=None if options.deterministic else _seconds(found),
        synth_version=__version__,
        steady=_steady(found),
    )


def _why_it_stopped(found: Incumbent | Result) -> str:
    if not isinstance(found, Result):
        return STILL_SEARCHING
    # What is said of bound and gap is of the makespan.
    return found.stopped_by + (IN_STEADY_STATE if found.steady is not None else "")


def _steady(found: Incumbent | Result) -> SteadyClaim | None:
    proof = found.steady
    if proof is None:
        return None
    return SteadyClaim(
        micro_batch_us=proof.us,
        lower_bound_us=proof.lower_bound_us,
        repeating_us=proof.repeating_us,
    )


def _seconds(found: Incumbent | Result) -> float:
    return round(found.wall_s if isinstance(found, Result) else found.elapsed_s, 3)
