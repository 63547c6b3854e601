"""One row of a suite: the problem, the run, and the checks of the result."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from benchmarks.solver.baselines import Baseline, best_fitting, published
from benchmarks.solver.probe import Cell, Probe
from synth.objective import Objective
from synth.plan.recompute.choice import Choice, solve_with
from synth.schedule.rank_memory import peak_bytes
from synth.schedule.verify import ScheduleError, verify
from synth.search.outcome import relative_gap
from synth.solver.options import Part, SolveOptions
from synth.solver.problem import Problem
from synth.solver.result import Result
from synth.solver.watch import SolveWatch

# Percentage points between gaps that count as the same; the search reports no smaller rise of its
# bound.
SAME_GAP = 0.1


@dataclass(frozen=True)
class Known:
    """A bound and a value known before, in µs; equal if the problem is solved."""

    bound_us: int
    value_us: int

    def __str__(self) -> str:
        """For the table: `1676`, or `6045-6199`."""
        closed = self.bound_us == self.value_us
        return str(self.value_us) if closed else f"{self.bound_us}-{self.value_us}"


@dataclass(frozen=True)
class Look:
    """Additions of a suite to a row: columns of its own, and claims that turned out to be wrong."""

    columns: Mapping[str, Cell] = field(default_factory=dict)
    failures: tuple[str, ...] = ()


@dataclass(frozen=True)
class Case:
    """A problem to solve.

    Attributes:
        label: the label of the row; `--only` selects rows that contain a text.
        time_limit_s: replaces that of the suite.
        without: parts of the search to leave out.
        compared_with: the label of the case with all parts, its own or that of an earlier one. The
            row then has the time to that case's final gap. A case without a part that takes no step
            with all parts is not run.
        recompute: stages that recompute; None: chosen by the search.
        look: makes the suite's own columns from the result.
        cell: the names of its line and its column in a pivoted table.
        is_large: True shows memory and time by part, and takes the published schedules from the
            result, because making them again would take minutes.
    """

    label: str
    problem: Problem
    time_limit_s: float | None = None
    without: frozenset[Part] = frozenset()
    compared_with: str | None = None
    recompute: Choice = ()
    known: Known | None = None
    look: Callable[[Result], Look] | None = None
    cell: tuple[str, str] | None = None
    is_large: bool = False


@dataclass(frozen=True)
class Suite:
    """Cases under one name; they are made when the suite runs."""

    name: str
    about: str
    cases: Callable[[], Iterator[Case]]
    time_limit_s: float = 60.0


@dataclass(frozen=True)
class Row:
    """The result of a case; times of schedules in µs, those of the search in seconds.

    Attributes:
        to_gap_s: the time at which the search first reached the final gap of the case that it is
            compared with; None if it never did, or is not compared. A gap counts as reached at
            `SAME_GAP` points more, but a gap of 0 only with the proof.
        parts: the parts of the search that took a step.
    """

    label: str
    seed: int
    objective: str
    family: str | None
    family_us: int | None
    value_us: int | None
    bound_us: int
    gap_percent: float | None
    gain_percent: float | None
    wall_s: float
    first_s: float | None
    found_by: str | None
    stopped_by: str
    columns: Mapping[str, Cell]
    cell: tuple[str, str] | None
    failures: tuple[str, ...]
    to_gap_s: float | None = None
    parts: tuple[str, ...] = ()


class _TimedGap(NamedTuple):
    """The gap of a search at a time since its start."""

    at_s: float
    gap: float


def measure(
    case: Case,
    time_limit_s: float,
    workers: int | None,
    seed: int = 0,
    compared_with: Row | None = None,
) -> Row:
    """Solve, and judge the answer.

    Args:
        compared_with: the row of the case with all parts, if it is not this one.
    """
    gaps: list[_TimedGap] = []
    parts: set[Part] = set()
    options = SolveOptions(
        time_limit_s, workers=workers, seed=seed, without=case.without, on_part=parts.add
    )
    with Probe() as probe:
        result = solve_with(
            case.problem,
            case.recompute,
            options,
            SolveWatch(lambda step: gaps.append(_TimedGap(step.elapsed_s, step.gap))),
        )
    first_s = round(gaps[0].at_s, 3) if gaps else None
    if result.gap is not None:
        gaps.append(_TimedGap(result.wall_s, result.gap))
    baselines = _baselines_of(result) if case.is_large else list(published(case.problem))
    best = best_fitting(baselines)
    look = case.look(result) if case.look else Look()
    columns: dict[str, Cell] = {"known": str(case.known)} if case.known else {}
    columns |= probe.columns() if case.is_large else {}
    return Row(
        label=case.label,
        seed=seed,
        objective=str(case.problem.objective),
        family=best.name if best else None,
        family_us=best.value_us if best else None,
        value_us=result.value_us,
        bound_us=result.lower_bound_us,
        gap_percent=None if result.gap is None else round(100 * result.gap, 3),
        gain_percent=_gain_percent(best, result),
        wall_s=round(result.wall_s, 3),
        first_s=first_s,
        found_by=result.found_by,
        stopped_by=result.stopped_by.value,
        columns=columns | dict(look.columns),
        cell=case.cell,
        failures=(*_failures(case, result, best), *look.failures),
        to_gap_s=_time_to_gap_s(gaps, _aim(case, result, compared_with)),
        parts=tuple(sorted(parts)),
    )


def _aim(case: Case, result: Result, compared_with: Row | None) -> float | None:
    """Return the final gap of the case with all parts; None if there is none."""
    if case.compared_with == case.label:
        return result.gap
    if compared_with is None or compared_with.value_us is None:
        return None
    return relative_gap(compared_with.value_us, compared_with.bound_us)


def _time_to_gap_s(gaps: Iterable[_TimedGap], aim: float | None) -> float | None:
    """Return when a gap was first reached; None if never, or without one to reach."""
    if aim is None:
        return None
    largest = aim + SAME_GAP / 100 if aim > 0 else 0.0
    return next((round(timed.at_s, 3) for timed in gaps if timed.gap <= largest), None)


def _baselines_of(result: Result) -> list[Baseline]:
    objective = result.problem.objective
    return [
        Baseline(r.name, objective.value_us(r), r.fits) for r in result.baselines if r.keeps_saved
    ]


def _gain_percent(best: Baseline | None, result: Result) -> float | None:
    if best is None or result.value_us is None or best.value_us == 0:
        return None
    return round(100 * (1 - result.value_us / best.value_us), 3)


def _failures(case: Case, result: Result, best: Baseline | None) -> Iterator[str]:
    """Yield descriptions of results that must never occur."""
    value_us, bound_us, known = result.value_us, result.lower_bound_us, case.known
    if known is not None and bound_us > known.value_us:
        yield f"the bound {bound_us} is above a value found before, {known.value_us}"
    if (
        best is not None
        and bound_us > best.value_us
        and result.problem.objective == Objective.MAKESPAN
    ):
        yield f"the bound {bound_us} is above {best.name}, {best.value_us}"
    if value_us is None:
        if best is not None:
            yield f"no answer, though {best.name} fits"
        return
    if value_us < bound_us or (known is not None and value_us < known.bound_us):
        yield f"the value {value_us} is below a proven bound"
    if best is not None and value_us > best.value_us and Part.FAMILIES not in case.without:
        yield f"the value {value_us} is above {best.name}, {best.value_us}"
    yield from _wrong_schedule(result)


def _wrong_schedule(result: Result) -> Iterator[str]:
    """Yield the verifier's objections to the schedule, and wrong figures in the result."""
    problem, schedule = result.problem, result.schedule
    assert schedule is not None
    try:
        lowered, timeline = verify(schedule, problem.costs, problem.caps_bytes)
    except ScheduleError as error:
        yield f"the verifier refuses the schedule: {error}"
        return
    simulated_us = problem.objective.value_us(timeline)
    if simulated_us != result.value_us:
        yield f"the schedule takes {simulated_us}, not {result.value_us}"
    if tuple(peak_bytes(lowered)) != result.peak_bytes:
        yield f"the schedule's peaks are {peak_bytes(lowered)}, not {result.peak_bytes}"
