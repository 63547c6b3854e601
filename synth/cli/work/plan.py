"""The work of `synth plan`."""

import threading
import time
from math import ceil

from synth.cli.answer.layout_commands import commands
from synth.cli.answer.output import Format, answer, answer_json, percent, talk
from synth.cli.answer.plan import layout_json, layout_text
from synth.cli.plan import PlanRequest
from synth.cli.progress.interrupt import Interrupted, OutOfTime, run_interruptibly
from synth.cli.progress.line import current_line
from synth.errors import ExitCode, SynthError
from synth.layouts.answer import LayoutAnswer
from synth.layouts.question import LayoutQuestion
from synth.layouts.runtime_rules import left_out
from synth.options.deadline import Deadline
from synth.options.layout_task import read_layout_task
from synth.plan.runtimes import Runtime
from synth.units import counted, format_bytes, format_us

# Seconds in which layouts of hundreds of devices are listed and the first ones judged.
_ENOUGH_S = 30

# Least seconds between two messages about layouts that are judged.
_PAUSE_S = 5.0


class NoLayout(SynthError):
    """No layout fits, or none was found in time."""

    exit_code = ExitCode.NOTHING_FOUND


def work(request: PlanRequest) -> None:
    """Choose the layout of a run."""
    given = request.arguments
    deadline = Deadline.of(given.time_limit)
    request.check_files()
    task = read_layout_task(given)
    asked = task.question
    talk(
        f"{asked.shape.name} on {asked.gpus} × {asked.device.title}, "
        f"{counted(asked.global_batch, 'sequence')} of {counted(asked.seq_len, 'token')}; "
        f"{task.limit.explanation}"
    )
    if reason := left_out(asked.allowed.runtime, asked.shape, asked.precision):
        talk(reason)
    progress, stop = _Progress(), threading.Event()
    search = task.search(deadline.left_of(given.time_limit), stop, progress)

    def run(asked_to_stop: threading.Event) -> LayoutAnswer:
        search.stop = asked_to_stop
        return search.run()

    try:
        found = run_interruptibly(
            run, deadline.until(), lambda: search.answer.so_far() if search.answer.best else None
        )
    except OutOfTime:
        found = search.answer.so_far()
    found.is_interrupted = search.stop.is_set() and deadline.elapsed_s < given.time_limit
    if found.best is None:
        if found.is_interrupted:
            raise Interrupted("interrupted before the first layout; run the same command again")
        raise NoLayout(_why_none(found, given.time_limit))
    if request.output is not None:
        found.best.plan.save(request.output)
    further = commands(task, found.best, request.output)
    if request.format == Format.JSON:
        answer_json(layout_json(found, further))
    else:
        answer(layout_text(found, further))
    if request.output is not None:
        talk(f"written: {request.output}")


def _why_none(found: LayoutAnswer, limit_s: float) -> str:
    asked = found.question
    if not found.legal:
        return (
            f"{asked.shape.name} has no layout on {counted(asked.gpus, 'device')} with "
            f"{counted(asked.global_batch, 'sequence')} a step; give a number of devices and a "
            f"--global-batch with common divisors"
        )
    if found.unfit == found.legal and found.closest_unfit is not None:
        unfit = found.closest_unfit
        where = f"of {asked.shape.name} on {counted(asked.gpus, 'device')}"
        least = f"fullest rank needs at least {_above(unfit.least_bytes, asked)}"
        if found.legal == 1:
            return (
                f"the only layout {where}, {unfit.layout.words}, fits into memory in no order: its "
                f"{least}; {_more_memory(asked)}"
            )
        return (
            f"none of {found.legal:,} layouts {where} fits into memory in any order: "
            f"{unfit.layout.words} comes closest, and its {least}; {_more_memory(asked)}"
        )
    if not found.judged:
        return (
            f"the time limit of {format_us(limit_s * 1e6)} was over before any of {found.legal:,} "
            f"legal layouts was judged, and {found.bounded:,} had a bound; give --time-limit "
            f"{_ENOUGH_S}s or more"
        )
    closest = ""
    if found.closest_judged is not None:
        judged = found.closest_judged
        closest = (
            f": {judged.layout.words} comes closest, and the fullest rank of its {judged.schedule} "
            f"needs {_above(max(judged.peaks_bytes), asked)}"
        )
    if found.bounded < found.legal:
        return (
            f"no layout that fits was found among the {found.bounded:,} of {found.legal:,} legal "
            f"ones that there was time for{closest}; allow more --time-limit, or "
            f"{_more_memory(asked)}"
        )
    return (
        f"no layout that fits was found among {found.legal - found.unfit:,} that may{closest}; "
        f"allow more --time-limit, or {_more_memory(asked)}"
    )


def _above(num_bytes: float, asked: LayoutQuestion) -> str:
    """`178 GB (166 GiB), 2 GB (2 GiB) more than the limit`."""
    needed = format_bytes(ceil(num_bytes))
    if asked.cap_bytes is None:
        return needed
    return f"{needed}, {format_bytes(ceil(num_bytes - asked.cap_bytes))} above the limit"


def _more_memory(asked: LayoutQuestion) -> str:
    """Return the ways to make layouts fit."""
    ways = "give more devices, or a higher --mem-limit"
    if asked.optimizer.float32_gradients and asked.allowed.runtime != Runtime.TORCHTITAN:
        narrow = asked.optimizer.replace(float32_gradients=False)
        ways += f", or --optimizer {narrow}, whose gradients take 2 bytes instead of 4"
    return ways


class _Progress:
    """Reports what is done, and the best step so far with its bound."""

    def __init__(self) -> None:
        self._told_at, self._line = 0.0, current_line()

    def __call__(self, text: str, so_far: LayoutAnswer) -> None:
        best = ""
        if so_far.best is not None:
            gap = "" if so_far.gap is None else f", gap {percent(so_far.gap, 1)}"
            best = f"; best so far {format_us(round(so_far.best.us))}{gap}"
        self._line.tell(f"{text}{best}")
        now = time.monotonic()
        if not text.startswith("judging tp") or now - self._told_at > _PAUSE_S:
            talk(f"{text}{best}")
            self._told_at = now
