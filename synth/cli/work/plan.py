"""The work of `synth plan`."""

import threading
import time

from synth.cli.answer.layout_commands import commands
from synth.cli.answer.output import Format, answer, answer_json, percent, talk
from synth.cli.answer.plan import layout_json, layout_text
from synth.cli.plan import PlanRequest
from synth.cli.progress.interrupt import Interrupted, OutOfTime, run_interruptibly
from synth.cli.progress.line import current_line
from synth.errors import ExitCode, SynthError
from synth.layouts.answer import LayoutAnswer
from synth.layouts.runtime_rules import left_out
from synth.options.deadline import Deadline
from synth.options.layout_task import read_layout_task
from synth.units import format_us

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
        f"{asked.shape.name} on {asked.gpus} × {asked.device.title}, {asked.global_batch} "
        f"sequences of {asked.seq_len} tokens; {task.limit.explanation}"
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
        raise NoLayout(_why_none(found))
    if request.output is not None:
        found.best.plan.save(request.output)
    further = commands(task, found.best, request.output)
    if request.format == Format.JSON:
        answer_json(layout_json(found, further))
    else:
        answer(layout_text(found, further))
    if request.output is not None:
        talk(f"written: {request.output}")


def _why_none(found: LayoutAnswer) -> str:
    asked = found.question
    if not found.legal:
        return (
            f"{asked.shape.name} has no layout on {asked.gpus} devices with {asked.global_batch} "
            f"sequences a step; give a number of devices and a --global-batch with common divisors"
        )
    if found.bounded < found.legal:
        return (
            f"no layout that fits was found among the {found.bounded:,} of {found.legal:,} legal "
            f"ones that there was time for; allow more --time-limit"
        )
    if found.unfit == found.legal:
        return (
            f"none of {found.legal} layouts of {asked.shape.name} on {asked.gpus} devices fits "
            f"into memory in any order; give more devices, or a higher --mem-limit"
        )
    return (
        f"no layout that fits was found among {found.legal - found.unfit:,} that may; allow more "
        f"--time-limit, or give more devices"
    )


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
