"""The work of `synth plan`."""

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from math import ceil
from textwrap import fill
from typing import Any

from synth.cli.answer.layout_commands import commands
from synth.cli.answer.output import Format, answer, answer_json, percent, talk
from synth.cli.plan import PlanRequest
from synth.cli.progress.interrupt import OutOfTime, run_interruptibly
from synth.cli.progress.line import current_line
from synth.errors import ExitCode, SynthError
from synth.layouts.answer import PART_NAMES, JudgedLayout, LayoutAnswer, Stability
from synth.layouts.question import LayoutQuestion
from synth.layouts.runtime_rules import left_out
from synth.options.deadline import Deadline
from synth.options.layout_task import read_layout_task
from synth.plan.runtimes import Runtime
from synth.report.text.tables import table
from synth.units import counted, format_bytes, format_us

# Seconds in which layouts of hundreds of devices are listed and the first ones judged.
_ENOUGH_S = 30

# Least seconds between two messages about layouts that are judged.
_PAUSE_S = 5.0


def work(request: PlanRequest) -> None:
    given = request.arguments
    deadline = Deadline.of(given.time_limit)
    request.check_files(given.model)
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
            message = "interrupted before the first layout; run the same command again"
            raise SynthError(message, ExitCode.INTERRUPTED)
        is_proven = found.unfit == found.legal
        code = ExitCode.INFEASIBLE if is_proven else ExitCode.NOTHING_FOUND
        raise SynthError(_why_none(found, given.time_limit), code)
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


_COLUMNS = 100
_MOST_ROWS, _MOST_REASONS = 12, 3

# Share of the best step below which a difference of parts is no reason.
_NO_REASON = 0.002


def layout_text(found: LayoutAnswer, commands: Mapping[str, str]) -> str:
    best = found.best
    assert best is not None
    sections = ["\n".join(_head(found, best)), _rows(found, best.us, found.best_of_each())]
    if found.also:
        sections.append("\n".join(_named(found, best)))
    sections.append("\n".join(f"{name}:\n{_indented(text)}" for name, text in commands.items()))
    return "\n\n".join(sections)


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())


def _filled(text: str) -> str:
    return fill(text, _COLUMNS, subsequent_indent="  ", break_on_hyphens=False)


def _head(found: LayoutAnswer, best: JudgedLayout) -> Iterator[str]:
    asked, estimate = found.question, best.profile.provenance.estimate
    assert estimate is not None
    yield _filled(estimate.words)
    number = counted(best.layout.micro_batches, "micro-batch")
    yield f"layout {best.layout.words}: {best.schedule}, {number}"
    yield (
        f"step {format_us(round(best.us))}, {asked.tokens_per_s(best.us):,.0f} tokens/s per device"
    )
    if found.bound_us is not None and found.gap is not None:
        yield _filled(
            f"no legal layout takes less than {format_us(round(found.bound_us))} under this cost "
            f"model{_orders(asked)}: no layout can be more than {percent(found.gap, 1)} faster "
            f"than this one"
        )
    yield _memory(found, best)
    why = "the search was interrupted" if found.is_interrupted else "the time was over"
    open_words = "" if found.is_complete else f"; {why} before all that may be faster"
    bounded = "" if found.bounded == found.legal else f"{found.bounded:,} bounded, "
    yield _filled(
        f"{found.legal:,} legal {'layout' if found.legal == 1 else 'layouts'}, "
        f"{bounded}{found.unfit:,} exceed the memory in any order, {found.judged:,} "
        f"judged{open_words}"
    )
    parts = (f"{name} {percent(us / best.us, 1)}" for name, us in _shown_parts(best))
    yield _filled(f"the step: {', '.join(parts)}")
    if found.stability is not None:
        yield _filled(_stable(found.stability, found.ranked, estimate.scatter))


def _orders(asked: LayoutQuestion) -> str:
    """Return for which orders bounds hold, unless for all."""
    return "" if asked.allowed.orders_freely else " in 1F1B or interleaved 1F1B"


def _memory(found: LayoutAnswer, best: JudgedLayout) -> str:
    peak, cap = max(best.peaks_bytes), found.question.cap_bytes
    if cap is None:
        return f"memory: {format_bytes(peak)} on the fullest rank, no limit"
    return (
        f"memory: {format_bytes(peak)} of {format_bytes(cap)} on the fullest rank, margin "
        f"{percent(1 - peak / cap, 1)}, {counted(best.recomputed, 'layer')} recomputed"
    )


def _shown_parts(one: JudgedLayout) -> Iterator[tuple[str, float]]:
    named = zip(PART_NAMES, one.parts, strict=True)
    yield from ((name, us) for name, us in named if abs(us) >= 0.0005 * one.us)


def _stable(stability: Stability, ranked: Sequence[JudgedLayout], scatter: float) -> str:
    near = sum(one.us <= (1 + scatter) * ranked[0].us for one in ranked)
    cut = ", for more of which the time was over" if stability.is_cut_short else ""
    return (
        f"the best in {stability.wins[0]} of {counted(stability.draws, 'draw')} of the estimate's "
        f"factors{cut}, among the best layouts of {len(stability.wins)} choices of tp and pp, at "
        f"most {percent(stability.worst_regret, 1)} slower than the best of a draw; "
        f"{counted(near, 'layout')} {'is' if near == 1 else 'are'} within the scatter of the "
        f"estimate, {percent(scatter, 0)}"
    )


def _rows(found: LayoutAnswer, best_us: float, shown: Sequence[JudgedLayout]) -> str:
    """Return a table with the best layout of each tp and pp, and those that were named."""
    header = ["tp", "cp", "ep", "pp", "dp", "mbs", "vp", "schedule", "recomp.", "step s"]
    header += ["tokens/s", "peak GB", "over best"]
    named = [(f"{text} *", one) for text, one in found.also.items() if one is not None]
    listed = [("", one) for one in shown[:_MOST_ROWS] if one not in found.also.values()]
    rows = [_row(found, best_us, one, text) for text, one in (*listed, *named)]
    text = table(header, [row for row in rows])
    more = len(shown) - _MOST_ROWS
    return f"{text}\n… and {more} more kinds" if more > 0 else text


def _row(found: LayoutAnswer, best_us: float, one: JudgedLayout, mark: str) -> list[str]:
    layout, groups = one.layout, one.layout.groups
    divided = f"×{groups.expert_tensor}" if groups.expert_tensor > 1 else ""
    sizes = (groups.tensor, groups.context, f"{groups.expert}{divided}", layout.ranks, groups.data)
    fits = "" if one.fits else " does not fit"
    return [
        *map(str, (*sizes, groups.micro_batch_size, layout.rounds)),
        f"{one.schedule}{' *' if mark else ''}",
        str(one.recomputed),
        f"{one.us / 1e6:.3f}",
        f"{found.question.tokens_per_s(one.us):,.0f}",
        f"{max(one.peaks_bytes) / 1e9:.1f}",
        f"{one.us / best_us - 1:+.1%}{fits}",
    ]


def _named(found: LayoutAnswer, best: JudgedLayout) -> Iterator[str]:
    for text, one in found.also.items():
        if one is None:
            yield _filled(f"* {text}: no schedule of the runtime exists for it")
            continue
        fits = "" if one.fits else ", and does not fit into the memory limit"
        reasons = ", ".join(_reasons(one, best)) or "no part differs much"
        yield _filled(f"* {text}: {one.us / best.us - 1:+.1%} of the best step{fits}: {reasons}")


def _reasons(one: JudgedLayout, best: JudgedLayout) -> list[str]:
    """Return the parts of the step that differ most, in shares of the best step."""
    listed = zip(PART_NAMES, one.parts, best.parts, strict=True)
    differences = [(name, (own - other) / best.us) for name, own, other in listed]
    differences.sort(key=lambda each: -abs(each[1]))
    chosen = [each for each in differences[:_MOST_REASONS] if abs(each[1]) >= _NO_REASON]
    return [f"{name} {share:+.1%}" for name, share in chosen]


def layout_json(found: LayoutAnswer, commands: Mapping[str, str]) -> dict[str, Any]:
    best, asked, stability = found.best, found.question, found.stability
    assert best is not None
    estimate = best.profile.provenance.estimate
    assert estimate is not None
    return {
        "model": asked.shape.name,
        "device": asked.device.name,
        "gpus": asked.gpus,
        "gpus_per_node": asked.device.ranks_per_node,
        "global_batch": asked.global_batch,
        "seq_len": asked.seq_len,
        "mem_limit_bytes": asked.cap_bytes,
        "runtime": asked.allowed.runtime.value,
        "software": asked.software.model_dump(mode="json"),
        "estimate": estimate.model_dump(mode="json"),
        "best": _json_of(found, best),
        "bound_us": found.bound_us,
        "gap": found.gap,
        "is_complete": found.is_complete,
        "interrupted": found.is_interrupted,
        "legal": found.legal,
        "bounded": found.bounded,
        "unfit": found.unfit,
        "judged": found.judged,
        "stability": None if stability is None else stability.data(),
        "best_of_each": [_json_of(found, one) for one in found.best_of_each()],
        "also": [
            {"text": text, "judged": None if one is None else _json_of(found, one)}
            for text, one in found.also.items()
        ],
        "commands": [{"for": name, "text": text} for name, text in commands.items()],
    }


def _json_of(found: LayoutAnswer, one: JudgedLayout) -> dict[str, Any]:
    layout, groups = one.layout, one.layout.groups
    return {
        "layout": layout.words,
        "tp": groups.tensor,
        "cp": groups.context,
        "ep": groups.expert,
        "etp": groups.expert_tensor,
        "pp": layout.ranks,
        "dp": groups.data,
        "micro_batch_size": groups.micro_batch_size,
        "stages_per_rank": layout.rounds,
        "micro_batches": layout.micro_batches,
        "sharding": groups.sharding.value,
        "recompute": groups.recompute.value,
        "recomputed_layers": one.recomputed,
        "schedule": one.schedule,
        "placement": one.placement,
        "step_us": one.us,
        "tokens_per_s": found.question.tokens_per_s(one.us),
        "bound_us": one.bound_us,
        "peak_bytes": max(one.peaks_bytes),
        "fits": one.fits,
        "parts_us": one.parts._asdict(),
    }
