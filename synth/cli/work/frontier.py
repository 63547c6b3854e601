"""The work of `synth frontier`."""

import threading
import time
from dataclasses import dataclass

from synth.cli.answer.frontier import as_json, as_text, drawn, write_frontier_page
from synth.cli.answer.output import Format, answer, answer_json, percent, talk, window_columns
from synth.cli.frontier import FrontierRequest
from synth.cli.progress.interrupt import Interrupted, run_interruptibly
from synth.cli.progress.line import current_line
from synth.cli.read.plans import save_plans
from synth.errors import SynthError
from synth.options.curve import read_curve, read_effort
from synth.plan.memory_curve.curve_file import (
    MemoryCurve,
    cap_of,
    difference,
    empty_curve,
    value_of,
)
from synth.plan.memory_curve.curve_search import Effort, trace
from synth.plan.search_space import LimitedSpace, Placements, WeightPlaces
from synth.profile import Profile
from synth.profile.estimate import ESTIMATED
from synth.records.file_lock import only_writer
from synth.report.picture.curve import curve_picture
from synth.report.picture.formats import save_picture
from synth.schedule.files.plan_file import Plan
from synth.units import counted, format_bytes, format_us


def work(request: FrontierRequest) -> None:
    """Trace the Pareto front of time and memory limit, from the smallest feasible limit on."""
    given = request.arguments
    profile = given.hardware.profile(given.pipeline.profile)
    space = read_curve(given, profile)
    request.check_files()
    asked = _CurveTask(request, profile, space, read_effort(given))
    with only_writer(request.output, "let that end and run this again, or give another -o"):
        curve, is_cut_short = _trace(asked)
    if not curve.points:
        raise Interrupted("interrupted before the first point; run the same command again")
    _answer(asked, curve, is_cut_short)
    if request.html is not None:
        write_frontier_page(request.html, curve, asked.title)
    if request.save is not None:
        save_plans(_by_file(curve), request.save, request.force)


def _by_file(curve: MemoryCurve) -> dict[str, Plan]:
    """Return the plan of every point by file name, which is its limit in bytes."""
    return {f"{cap_of(plan)}B.json": plan for plan in curve.points}


@dataclass(frozen=True)
class _CurveTask:
    request: FrontierRequest
    profile: Profile
    space: LimitedSpace
    effort: Effort

    @property
    def title(self) -> str:
        """The title of the plot."""
        space, problem = self.space, self.space.problem
        mark = "" if self.profile.provenance.estimate is None else ESTIMATED
        partition = f", in {'any' if isinstance(space, Placements) else 'one'} partition"
        if isinstance(space, WeightPlaces):
            partition = ""
        return (
            f"{self.profile.name}{mark} on {counted(problem.num_ranks, 'rank')} "
            f"({'; '.join(space.names)}), "
            f"{counted(problem.num_micro_batches, 'micro-batch')}{partition}"
        )

    def save(self, curve: MemoryCurve) -> None:
        """Write the curve file and the plots."""
        curve.save(self.request.output)
        for path in self.request.pictures:
            save_picture(path, curve_picture(drawn(curve, self.title)))


def _trace(asked: _CurveTask) -> tuple[MemoryCurve, bool]:
    """Return the curve, and True if a stop was asked for."""
    begun, space, effort = _begun(asked), asked.space, asked.effort
    problem = space.problem
    there = f"; {len(begun.points)} points are there already" if begun else ""
    sizes = ",".join(map(str, problem.partition or ()))
    how = "in the best partition" if isinstance(space, Placements) else f"as {sizes}"
    if isinstance(space, WeightPlaces):
        how = f"with {'; '.join(space.names)}"
    talk(
        f"{asked.profile.name}: {counted(problem.num_ranks, 'rank')} {how}, "
        f"{counted(problem.num_micro_batches, 'micro-batch')}; {effort.points} points, "
        f"{effort.jobs} at once with {effort.workers} workers each{there}"
    )
    progress = _Progress(asked, begun)

    def search(stop: threading.Event) -> tuple[MemoryCurve, bool]:
        return trace(asked.profile, space, effort, begun, progress, stop), stop.is_set()

    curve, is_cut_short = run_interruptibly(search)
    if curve.points:
        asked.save(curve)
    return curve, is_cut_short


def _begun(asked: _CurveTask) -> MemoryCurve | None:
    """Return the verified curve of the output file; None if there is none.

    Raises:
        SynthError: the file is no curve, or that of another problem.
    """
    output = asked.request.output
    if not output.exists():
        return None
    begun = MemoryCurve.load(output)
    differs = difference(begun, empty_curve(asked.profile, asked.space), asked.profile)
    if differs is not None:
        raise SynthError(
            f"{output} holds the curve of another problem ({differs}); give another -o, or "
            f"remove the file"
        )
    begun.check()
    return begun


class _Progress:
    """Saves the curve after every point, and reports it."""

    def __init__(self, asked: _CurveTask, begun: MemoryCurve | None) -> None:
        self._asked = asked
        self._told = {} if begun is None else _values(begun)
        self._line = current_line()
        self._tell(len(self._told))

    def __call__(self, curve: MemoryCurve) -> None:
        """Save a curve with one more point, and report new values."""
        self._asked.save(curve)
        values = _values(curve)
        self._tell(len(curve.points), _widest(curve))
        for cap, (value_us, bound_us) in values.items():
            if self._told.get(cap) != (value_us, bound_us):
                talk(
                    f"{len(curve.points)}/{self._asked.effort.points}  limit "
                    f"{format_bytes(cap)}  {curve.judged_by.words} {format_us(value_us)}  bound "
                    f"{format_us(bound_us)}"
                )
        self._told = values

    def _tell(self, num_points: int, more: str = "") -> None:
        """Show how many points are there, and the time that the others take at most."""
        effort = self._asked.effort
        rounds = -(-max(0, effort.points - num_points) // effort.jobs)
        text = f"{num_points} of {effort.points} points{more}"
        self._line.tell(text, time.monotonic() + rounds * effort.time_limit_s)


def _widest(curve: MemoryCurve) -> str:
    """Return the point with the largest gap."""
    plan = max(curve.points, key=lambda plan: plan.claim.gap)
    return (
        f"; largest gap {percent(plan.claim.gap)} at {format_bytes(cap_of(plan))}: "
        f"{curve.judged_by.words} {format_us(value_of(plan))}, bound "
        f"{format_us(plan.claim.lower_bound_us)}"
    )


def _values(curve: MemoryCurve) -> dict[int, tuple[int, int]]:
    """Return value and bound of each point by its memory limit."""
    return {cap_of(p): (value_of(p), p.claim.lower_bound_us) for p in curve.points}


def _answer(asked: _CurveTask, curve: MemoryCurve, is_cut_short: bool) -> None:
    request = asked.request
    if request.format == Format.JSON:
        files = {"curve": str(request.output), "picture": str(request.pictures[0])}
        answer_json(as_json(curve) | files)
    else:
        answer(as_text(curve, asked.title, request.width or window_columns() or 100))
    left = asked.effort.points - len(curve.points)
    if is_cut_short:
        talk("interrupted: the same command again continues from here")
    elif left > 0:
        talk(f"{left} points were not needed: the curve is complete between those found")
    talk(f"saved as {request.output}, drawn in {', '.join(map(str, request.pictures))}")
