"""An explanation of a plan as text: one screen of 80 columns."""

from collections.abc import Iterable, Iterator, Sequence
from textwrap import fill

from synth.plan.explain.explanation import Explanation
from synth.plan.explain.idle_causes import CAUSES, RankIdle
from synth.plan.explain.path_summary import CriticalPath, PathRun
from synth.plan.explain.what_if import How, WhatIf
from synth.report.text.tables import milliseconds, table
from synth.units import format_us

_COLUMNS = 80
_MOST_RANKS, _MOST_STAGES, _MOST_RUNS = 8, 4, 3
_HEADS = {"warm_up": "warm-up", "reductions": "reduce", "dependences": "others"}
_SECOND_US = 1_000_000

# The widths of the columns of changes and of their values; a share that is shown as 0.00 %.
_CHANGE, _VALUE = 42, 10
_NO_CHANGE = 5e-5


def explanation_text(explained: Explanation) -> str:
    """Return the explanation, with what changes would give if that was computed."""
    sections = ["\n".join(_head(explained)), _idle_table(explained)]
    if explained.what_ifs:
        sections.append(_what_ifs(explained.what_ifs))
    if explained.notes:
        sections.append("\n".join(_filled(note, "note: ") for note in explained.notes))
    return "\n\n".join(sections)


def _filled(text: str, start: str = "") -> str:
    return fill(start + text, _COLUMNS, subsequent_indent="  ")


def _head(explained: Explanation) -> Iterator[str]:
    yield _filled(f"{explained.plan}: {explained.sentence}")
    path = explained.critical_path
    yield _filled(f"critical path: {_shares(path)}")
    longest = sorted(path.runs, key=lambda run: -run.work_us)[:_MOST_RUNS]
    shown = [run for run in path.runs if run in longest]
    count = f"{len(shown)} longest of {len(path.runs)} runs" if len(path.runs) > 1 else "one run"
    yield _filled("; ".join(map(_run_words, shown)), f"its {count}: ")


def _shares(path: CriticalPath) -> str:
    """Return the shares of the path's time: ops by kind, transfers, reductions, main stages."""
    length_us = max(1, path.length_us)
    kinds = [f"{kind} {us / length_us:.1%}" for kind, us in path.kinds_us.items()]
    kinds.append(f"transfers {path.transfers_us / length_us:.1%}")
    if path.reductions_us:
        kinds.append(f"reductions {path.reductions_us / length_us:.1%}")
    most = sorted(enumerate(path.stages_us), key=lambda one: -one[1])[:_MOST_STAGES]
    stages = [f"stage {stage} {us / length_us:.1%}" for stage, us in most]
    return f"{', '.join(kinds)}; most of {', '.join(stages)}"


def _run_words(run: PathRun) -> str:
    where = f"rank {run.first_rank}"
    if run.first_rank != run.last_rank:
        where = f"ranks {run.first_rank} to {run.last_rank}"
    if run.num_ops == 1:
        return f"{run.first} on {where}, {format_us(run.work_us)}"
    return f"{run.first} to {run.last} on {where} ({run.num_ops} ops, {format_us(run.work_us)})"


def _idle_table(explained: Explanation) -> str:
    """Return the idle time by cause, of all ranks or of those with the most, and their mean.

    Reductions have a column if a rank waits for one.
    """
    idle = explained.idle
    reduces = any(one.reductions_us for one in idle)
    causes = [cause for cause in CAUSES if reduces or cause != "reductions"]
    most = sorted(idle, key=lambda one: -one.idle_us)[:_MOST_RANKS]
    shown = [one for one in idle if one in most]
    decimals = 3 if max(one.work_us + one.idle_us for one in idle) < _SECOND_US else 1
    rows = [_idle_row(str(one.rank), [one], causes, decimals) for one in shown]
    rows.append(_idle_row("mean", idle, causes, decimals))
    header = ["rank", "work ms", "idle ms", *(_HEADS.get(cause, cause) for cause in causes)]
    text = table(header, rows)
    if len(shown) < len(idle):
        text += f"\n(the {len(shown)} of {len(idle)} ranks with the most idle time)"
    return text


def _idle_row(
    name: str, idle: Sequence[RankIdle], causes: Sequence[str], decimals: int
) -> list[str]:
    def mean(values: Iterable[int]) -> str:
        return f"{sum(values) / len(idle) / 1000:,.{decimals}f}"

    parts = [mean(one.causes_us[cause] for one in idle) for cause in causes]
    return [name, mean(one.work_us for one in idle), mean(one.idle_us for one in idle), *parts]


def _what_ifs(what_ifs: Sequence[WhatIf]) -> str:
    """Return a row for each change, those of the same order first."""
    heads = {
        How.SAME_ORDER: "the same order, simulated again with …",
        How.SEARCH: "an order searched for from the plan, with …",
    }
    lines = []
    for how, head in heads.items():
        rows = [_what_if_row(one) for one in what_ifs if one.how == how]
        lines += [f"{head:<{_CHANGE}}{'ms':>{_VALUE}}", *rows] if rows else []
    return "\n".join(lines)


def _what_if_row(one: WhatIf) -> str:
    """Return the change, the value in milliseconds, and what it means, in its own column."""
    value = "–" if one.value_us is None else milliseconds(one.value_us)
    first = f"  {one.change:<{_CHANGE - 2}}{value:>{_VALUE}}  "
    return fill(first + _result(one), _COLUMNS, subsequent_indent=" " * (_CHANGE + _VALUE + 2))


def _result(one: WhatIf) -> str:
    """Return the change of time in words, with `at least` and `at most` where it was searched."""
    share = one.change_share
    if share is None:
        return one.note
    if abs(share) < _NO_CHANGE:
        return one.note or "as long"
    limit = ""
    if one.how == How.SEARCH:
        limit = "at least " if share < 0 else "at most "
    words = f"{limit}{abs(share):.2%} {'less' if share < 0 else 'more'}"
    return f"{words}, {one.note}" if one.note else words
