"""The table of a search over several candidates, a row for each."""

from typing import Any

from synth.cli.answer.output import percent, wrapped
from synth.objective import BoundScope
from synth.options.choice_stability import ChoiceStability
from synth.plan.choose.candidates import Ranking, Trial
from synth.report.text.tables import milliseconds, table
from synth.solver.problem import Problem
from synth.units import format_bytes

# Rows of the table, unless all are asked for.
_SHOWN = 8


def candidates_table(chosen: Ranking, *, with_partitions: bool, has_all_rows: bool) -> str:
    """Return a table with a row per candidate, best first, and the bound's scope."""
    best, objective = chosen.result, chosen.result.problem.objective
    header = ["placement", f"{objective.words}\nms", "lower bound\nms", "gap", "peak"]
    trials = chosen.trials if has_all_rows else chosen.trials[:_SHOWN]
    rows = [[trial.name, *_row(trial, chosen)] for trial in trials]
    if with_partitions:
        header.append("layers per stage")
        rows = [[*row, sizes(trial.problem)] for row, trial in zip(rows, trials, strict=True)]
    missing = len(chosen.trials) - len(trials)
    scope = best.bound_scope.words
    if best.bound_scope == BoundScope.CANDIDATES:
        scope = f"the placements and partitions {'of all rows' if missing else 'in this table'}"
    more = f"({missing} more: --all)\n" if missing else ""
    return (
        f"{table(header, rows)}\n{more}\nbest: {chosen.name}, {sizes(best.problem)}; the bound "
        f"below, {milliseconds(best.lower_bound_us)} ms, holds for {scope}"
    )


def stability_line(found: ChoiceStability) -> str:
    """Say how the choice changes over the uncertainty of the estimate."""
    stability, wins = found.stability, zip(found.names, found.stability.wins, strict=True)
    others = [f"{name} {count}" for name, count in list(wins)[1:] if count]
    instead = f" ({', '.join(others)})" if others else ""
    return wrapped(
        f"{found.names[0]} is the best in {stability.wins[0]} of {stability.draws} draws of the "
        f"estimate's factors{instead}, at most {percent(stability.worst_regret)} slower than the "
        f"best of a draw, each placement with its order and partition"
    )


def sizes(problem: Problem) -> str:
    """Return the layers of each stage."""
    return ",".join(map(str, problem.partition or ()))


def _row(trial: Trial, chosen: Ranking) -> list[str]:
    """Return value, bound, gap and peak, or why there are none."""
    bound = milliseconds(trial.lower_bound_us)
    if trial.is_impossible:
        return ["infeasible", "", "", ""]
    if trial.found is None:
        return [_without_result(trial, chosen), bound, "", ""]
    value_us, peak_bytes = trial.value_us, trial.found.peak_bytes
    if trial.gap is None or value_us is None or peak_bytes is None:
        return ["none found", bound, "", ""]
    return [milliseconds(value_us), bound, percent(trial.gap), format_bytes(max(peak_bytes))]


def _without_result(trial: Trial, chosen: Ranking) -> str:
    state, best_us = "no result" if chosen.is_interim else "not tried", chosen.result.value_us
    if best_us is None:
        return state
    left = 1 - trial.lower_bound_us / best_us
    return "cannot win" if left <= 0 else f"{state}: at most {percent(left)} less"


def candidates_json(chosen: Ranking) -> list[dict[str, Any]]:
    """Return the same rows as objects."""
    return [
        {
            "name": trial.name,
            "partition": trial.problem.partition,
            "value_us": trial.value_us,
            "lower_bound_us": None if trial.is_impossible else trial.lower_bound_us,
            "peak_bytes": None if trial.found is None else trial.found.peak_bytes,
            "seconds": round(trial.seconds, 3),
        }
        for trial in chosen.trials
    ]
