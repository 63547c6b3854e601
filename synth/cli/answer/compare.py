"""The answer of `synth compare`: table, plot and refused schedules, as text or JSON."""

from textwrap import fill, wrap
from typing import Any, NamedTuple

from synth.cli.answer.output import estimate_json, estimate_lines, value_line
from synth.plan.comparison import Comparison, Entry
from synth.plan.published.order_scores import Score
from synth.profile.estimate import ESTIMATED
from synth.profile.throughput import Throughput, throughput
from synth.report.text.canvas import letter
from synth.report.text.pareto import Mark, Pareto, plot
from synth.report.text.tables import (
    by_partition,
    fitted_table,
    listed,
    recomputed_places,
    runs_text,
    size_unit,
    table,
)
from synth.units import counted, format_bytes, format_us

# Width in columns that fits any terminal.
_COLUMNS = 80

# The columns that a narrow window leaves out, in this order.
_SPARE = ("summed", "sent", "static", "tokens", "samples", "period", "MFU")


def drawn(comparison: Comparison) -> Pareto:
    """Return the data of the plots, in the order of the table."""
    asked = comparison.question
    marks = tuple(
        Mark(
            entry.name,
            asked.objective.value_us(entry),
            max(entry.peak_bytes),
            entry.lower_bound_us is not None,
            entry.delay,
            entry.above_limit is not None,
        )
        for entry in comparison.ranked()
    )
    mark = "" if asked.profile.provenance.estimate is None else ESTIMATED
    title = (
        f"{asked.profile.name}{mark} on {counted(asked.num_ranks, 'rank')}, "
        f"{counted(asked.num_micro_batches, 'micro-batch')}"
    )
    return Pareto(title, asked.objective.words, marks, asked.caps_bytes or ())


def as_text(comparison: Comparison, width: int) -> str:
    """Return table, plot and refusals for a terminal."""
    pareto = drawn(comparison)
    proofs = _proofs(comparison)
    rows = fitted_table(*head_and_rows(comparison, pareto), width, _SPARE)
    parts = [
        *estimate_lines(comparison.question.profile)[:1],
        f"{rows}\n\n{_legend(comparison)}",
        *(["\n".join(proofs)] if proofs else []),
    ]
    parts += _variants(comparison)
    parts += _steady_state(comparison)
    parts += _predictions(comparison)
    parts.append(plot(pareto, width))
    parts += _ended_early(comparison, width)
    if comparison.refusals:
        parts.append("\n".join(("not applicable:", *_refused(comparison, width))))
    return "\n\n".join(parts)


def _ended_early(comparison: Comparison, width: int) -> list[str]:
    """Return a paragraph on published schedules that the time limit may show as too slow."""
    names = comparison.ended_early
    if not names:
        return []
    few = (
        f"{', '.join(names[:3])} and {len(names) - 3} more" if len(names) > 4 else ", ".join(names)
    )
    told = (
        f"The time limit ended the search for the best partition or recomputed layers of {few}: "
        f"allow more --time-limit, or choose fewer schedules by --only"
    )
    return ["\n".join(wrap(told, width))]


def _refused(comparison: Comparison, width: int) -> list[str]:
    """Return the lines of the refused schedules, wrapped to the width."""
    longest = max(len(refusal.name) for refusal in comparison.refusals)
    lines = []
    for refusal in comparison.refusals:
        first = f"  {refusal.name:<{longest}}  "
        lines += wrap(
            _rule(refusal.reason), width, initial_indent=first, subsequent_indent=" " * len(first)
        )
    return lines


def _rule(reason: str) -> str:
    """Return the first part of a message: the rule, without the way out.

    If nothing fits, the needed memory stands after the colon.
    """
    rule = reason.splitlines()[0].split(";")[0]
    return rule if rule.startswith("no schedule fits") else rule.split(": ")[0]


class _Column(NamedTuple):
    """A column of the table: its head, and a cell for each schedule."""

    head: str
    cells: list[str]


def head_and_rows(comparison: Comparison, pareto: Pareto) -> tuple[list[str], list[list[str]]]:
    """Return the heads of the columns, and one row per schedule, best first."""
    columns = [
        _names(comparison, pareto),
        *_times(comparison),
        *_utilization(comparison),
        *_memory_and_traffic(comparison),
        *_speed_and_verdicts(comparison),
    ]
    rows = [list(row) for row in zip(*(column.cells for column in columns), strict=True)]
    return [column.head for column in columns], rows


def _names(comparison: Comparison, pareto: Pareto) -> _Column:
    signs = {mark.name: "~" for mark in pareto.marks if pareto.is_late(mark)}
    signs |= {mark.name: "*" for mark in pareto.front}
    letters = list(map(letter, range(len(pareto.marks))))
    width = max(map(len, letters))
    return _Column(
        f"\n{'':>{width}}  schedule",
        [
            f"{one:<{width}}{signs.get(mark.name, ' ')} {mark.name}"
            for one, mark in zip(letters, pareto.marks, strict=True)
        ],
    )


def _times(comparison: Comparison) -> list[_Column]:
    """Return makespan and period, and overhead and mean idle share of the objective."""
    entries, objective = comparison.ranked(), comparison.question.objective
    over = [comparison.question.over_ideal(entry) for entry in entries]
    idle = [objective.bubble_rate(entry, entry.mean_work_us) for entry in entries]
    return [
        _Column("\nmakespan\nms", [f"{entry.makespan_us / 1000:,.1f}" for entry in entries]),
        _Column("\nperiod\nms", [f"{entry.period_us / 1000:,.1f}" for entry in entries]),
        _Column("over\nideal\n%", [f"{100 * share:.1f}" for share in over]),
        _Column("mean\nidle\n%", [f"{100 * share:.1f}" for share in idle]),
    ]


def _utilization(comparison: Comparison) -> list[_Column]:
    """Return the MFU, if it is known of a schedule."""
    speeds = [_throughput(entry, comparison) for entry in comparison.ranked()]
    if all(speed.mfu is None for speed in speeds):
        return []
    return [_Column("\nMFU\n%", [speed.mfu_cell(1) for speed in speeds])]


def _memory_and_traffic(comparison: Comparison) -> list[_Column]:
    entries = comparison.ranked()
    peaks = [max(entry.peak_bytes) for entry in entries]
    static = [max(entry.static_bytes) for entry in entries]
    sent = [entry.sent_bytes + entry.host_bytes for entry in entries]
    summed = [entry.reduced_bytes for entry in entries]
    memory, held = size_unit(max(peaks))
    traffic, moved = size_unit(max(*sent, *summed))
    return [
        _Column(f"\npeak\n{held}", _sizes(peaks, memory, 2)),
        _Column(f"\nstatic\n{held}", _sizes(static, memory, 2)),
        _Column(f"\nsent\n{moved}", _sizes(sent, traffic, 1)),
        _Column(f"\nsummed\n{moved}", _sizes(summed, traffic, 1)),
    ]


def _speed_and_verdicts(comparison: Comparison) -> list[_Column]:
    """Return the throughput, and delay and fit where there are late gradients and a limit."""
    entries, unit = comparison.ranked(), comparison.question.profile.workload.unit
    speeds = [_throughput(entry, comparison).cell for entry in entries]
    columns = [_Column(f"\n{unit}\nper s", speeds)]
    if any(entry.delay for entry in entries):
        columns.append(_Column("\ndelay", [str(entry.delay) for entry in entries]))
    if comparison.question.caps_bytes is not None:
        columns.append(_Column("\nfits", ["yes" if entry.fits else "no" for entry in entries]))
    return columns


def _sizes(sizes: list[int], unit: float, decimals: int) -> list[str]:
    """Return a column of sizes in a unit, with about four digits."""
    largest = max(sizes) / unit
    shown = 0 if unit == 1 else max(0, decimals - (largest >= 100) - (largest >= 1000))
    return [f"{size / unit:,.{shown}f}" for size in sizes]


def _legend(comparison: Comparison) -> str:
    delay = ""
    if any(entry.delay for entry in comparison.entries):
        delay = (
            " delay: updates between the weights that a gradient was computed with and those that "
            "it updates, at most; the front is of the least delay, and ~ marks later gradients, "
            "with which a model trains differently."
        )
    return fill(
        f"sorted by the {comparison.question.objective.words}; * Pareto front. over ideal: "
        f"that time beyond F + B + W of all layers, without recomputation, divided by the ranks; "
        f"mean idle: the idle share of that time, of all ranks. "
        f"static: parameters, gradients, optimizer state, of both copies where there are two. "
        f"sent: between ranks, and to the hosts' memory and back; summed: by collectives; both "
        f"over all links.{delay}{_recomputing(comparison)}",
        _COLUMNS,
    )


def _recomputing(comparison: Comparison) -> str:
    has_any = any(entry.recomputed_layers for entry in comparison.entries)
    return " +R: with recomputed layers." if has_any else ""


def _variants(comparison: Comparison) -> list[str]:
    """List the layers of each stage with the schedules that have them, and recomputed layers."""
    by_sizes = by_partition((entry.partition, entry.name) for entry in comparison.ranked())
    by_name = [
        f"{entry.name}:  {entry.recomputation or 'layers'} ({recomputed_places(entry.recomputed)})"
        for entry in comparison.ranked()
        if entry.recomputed_layers
    ]
    above = [
        f"{entry.name}:  {format_us(score.value_us)}, {format_bytes(score.peak_bytes)} "
        f"({runs_text(sizes)})"
        for entry in comparison.ranked()
        if entry.above_limit is not None
        for sizes, score in (entry.above_limit,)
    ]
    blocks = [
        ("layers of each stage:", by_sizes),
        ("recomputed layers:", by_name),
        ("faster on a partition that exceeds the limit:", above),
    ]
    return ["\n".join((title, *listed(lines))) for title, lines in blocks if lines]


def _steady_state(comparison: Comparison) -> list[str]:
    """Return the table of the long run, of schedules without a flush and the fastest with one."""
    entries = [entry for entry in comparison.ranked() if entry.steady_us is not None]
    without = [entry for entry in entries if entry.schedule.versions is not None]
    if not without:
        return []
    flushing = [entry for entry in entries if entry.schedule.versions is None]
    shown = [*without, *sorted(flushing, key=_steady_us)[:1]]
    bounds = {
        entry.name: f"{entry.claim.steady.lower_bound_us / 1000:,.3f}"
        for entry in shown
        if entry.claim is not None and entry.claim.steady is not None
    }
    rows = [
        [
            entry.name,
            f"{_steady_us(entry) / 1000:,.3f}",
            str(entry.delay),
            str(entry.versions),
            *([bounds.get(entry.name, "")] if bounds else []),
        ]
        for entry in sorted(shown, key=_steady_us)
    ]
    note = fill(
        "in the long run; with a flush: the period over the number of micro-batches, without one: "
        "while the pipeline is full.",
        _COLUMNS,
    )
    header = ["schedule", "ms of a micro-batch", "delay", "versions"]
    return [f"{table([*header, *(['lower bound'] if bounds else [])], rows)}\n\n{note}"]


def _predictions(comparison: Comparison) -> list[str]:
    """Return the predictions of published planners beside what the simulation shows."""
    return [
        fill(
            f"{entry.name}: {told.time_us / 1000:,.3f} ms of a micro-batch predicted "
            f"({told.bound_by}), {_found(entry.steady_us)} simulated; layers per stage "
            f"{','.join(map(str, entry.partition))}",
            _COLUMNS,
        )
        for entry in comparison.ranked()
        if (told := entry.prediction) is not None
    ]


def _found(steady_us: float | None) -> str:
    return "never full as" if steady_us is None else f"{steady_us / 1000:,.3f} ms"


def _steady_us(entry: Entry) -> float:
    return entry.steady_us or 0.0


def _proofs(comparison: Comparison) -> list[str]:
    """Return value, bound and gap of the solver's rows, each for its placement and partition."""
    objective = comparison.question.objective
    return [
        f"{entry.name}:\n"
        + fill(
            value_line(objective.words, objective.value_us(entry), entry.lower_bound_us, gap),
            initial_indent="  ",
            subsequent_indent="  ",
            width=_COLUMNS,
        )
        for entry in comparison.ranked()
        if entry.lower_bound_us is not None
        and entry.schedule.versions is None
        and (gap := entry.gap(objective)) is not None
    ]


def as_json(comparison: Comparison) -> dict[str, Any]:
    """Return everything for scripts; docs/families.md documents the fields."""
    asked, pareto = comparison.question, drawn(comparison)
    front = {mark.name for mark in pareto.front}
    return {
        "profile": asked.profile.name,
        **estimate_json(asked.profile),
        "num_ranks": asked.num_ranks,
        "num_micro_batches": asked.num_micro_batches,
        "objective": str(asked.objective),
        "caps_bytes": asked.caps_bytes,
        "schedules": [_entry_json(e, comparison, e.name in front) for e in comparison.ranked()],
        "refused": [
            {"name": refusal.name, "reason": refusal.reason} for refusal in comparison.refusals
        ],
        "ended_early": comparison.ended_early,
    }


def _above_limit(sizes: tuple[int, ...], score: Score) -> dict[str, Any]:
    return {"partition": sizes, "value_us": score.value_us, "peak_bytes": score.peak_bytes}


def _throughput(entry: Entry, comparison: Comparison) -> Throughput:
    asked = comparison.question
    per_s = asked.objective.iterations_per_s(entry)
    return throughput(per_s, asked.num_micro_batches, asked.num_ranks, asked.profile)


def _entry_json(entry: Entry, comparison: Comparison, is_on_front: bool) -> dict[str, Any]:
    of_makespan, of_period = entry.bubble_rates
    return {
        "name": entry.name,
        "placement": entry.schedule.placement.ranks,
        "backward_placement": entry.schedule.placement.backward_ranks,
        "partition": entry.partition,
        "recomputed_layers": tuple(entry.recomputed_layers),
        "recompute_policies": entry.recomputed.of_policies,
        "recomputation": entry.recomputation or None,
        "above_limit": None if entry.above_limit is None else _above_limit(*entry.above_limit),
        "makespan_us": entry.makespan_us,
        "period_us": entry.period_us,
        "work_us": entry.work_us,
        "over_ideal": comparison.question.over_ideal(entry),
        "bubble_rate_of_makespan": of_makespan,
        "bubble_rate_of_period": of_period,
        "mean_idle_of_makespan": entry.mean_idle[0],
        "mean_idle_of_period": entry.mean_idle[1],
        **_throughput(entry, comparison).as_json(),
        "peak_bytes": entry.peak_bytes,
        "static_bytes": entry.static_bytes,
        "sent_bytes": entry.sent_bytes,
        "reduced_bytes": entry.reduced_bytes,
        "host_bytes": entry.host_bytes,
        "delay": entry.delay,
        "versions": entry.versions,
        "steady_us": entry.steady_us,
        "prediction": None if entry.prediction is None else entry.prediction._asdict(),
        "fits": entry.fits,
        "on_front": is_on_front,
        "lower_bound_us": entry.lower_bound_us,
        "gap": entry.gap(comparison.question.objective),
    }
