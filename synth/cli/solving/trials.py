"""`synth solve` where something is left to the search: candidates are tried, the best is told."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from synth.cli.answer.output import Format, answer, answer_json, percent, talk
from synth.cli.answer.preview import Infeasible
from synth.cli.progress.best_so_far import BestSoFar
from synth.cli.progress.deadline import Deadline
from synth.cli.progress.interrupt import run_interruptibly
from synth.cli.progress.reporter import ProgressReporter
from synth.cli.read.defaults import AUTO, FOR_ALL, SolveChoices
from synth.cli.read.limits import (
    EVEN,
    SEARCH,
    is_searched,
    is_steady,
    read_recompute,
    read_sizes,
    word,
)
from synth.cli.read.options import asked_problem, read_objective
from synth.cli.read.request import Request, announce_sizes
from synth.cli.solving.search import finish
from synth.errors import SynthError
from synth.objective import BoundScope
from synth.profile import Profile
from synth.report.text.tables import milliseconds, size_unit, table
from synth.units import format_bytes, shown

if TYPE_CHECKING:
    from synth.plan.choose.candidates import Candidate, Chosen, Trial
    from synth.schedule.model import Placement
    from synth.solve.problem import Problem
    from synth.solve.result import Incumbent, Result


@dataclass(frozen=True)
class Candidates:
    """Candidates to choose from, at least one, and reasons why other placements are impossible."""

    them: "tuple[Candidate, ...]"
    refusals: dict[str, str]


def is_choice(chosen: SolveChoices, *, is_for_one: bool) -> bool:
    """True if the placement, the partition or what is recomputed is left to the search.

    Args:
        is_for_one: a hint or a target is given; then `search` chooses the stages that recompute.
    """
    chooses_stages = _is_auto(chosen.recompute) and not is_for_one
    return chooses_stages or _is_auto(chosen.placement) or is_searched(chosen.partition)


def _is_auto(placement: str) -> bool:
    return word(placement) == AUTO


def asked_candidates(
    profile: Profile,
    chosen: SolveChoices,
    num_ranks: int,
    num_micro_batches: int,
    objective: str,
    caps_bytes: tuple[int, ...] | None,
    deadline: Deadline,
    recomputed_layers: tuple[int, ...] = (),
    chooses_layers: bool = False,
) -> Candidates:
    """The placement given, or the usual ones, each with the problem that `asked_problem` makes.

    A partition that is given leaves the placements with as many stages; one that is sought begins
    with the even one.

    Raises:
        SynthError: `asked_problem` refuses all placements, or the stages named do not exist on all.
    """
    from synth.plan.choose.candidates import Candidate
    from synth.plan.recompute.choice import why_infeasible

    placement, recompute = chosen.placement, chosen.recompute
    partition = EVEN if is_searched(chosen.partition) else chosen.partition
    sizes = read_sizes(partition)
    placements = _placements(placement, num_ranks, len(profile.layers))
    read_objective(objective)
    if _is_auto(placement) and word(recompute) not in FOR_ALL:
        raise SynthError(
            f"--recompute {shown(recompute)} names stages of one placement; with --placement "
            f"{AUTO} give {', '.join(FOR_ALL)}"
        )
    found: list[Candidate] = []
    refusals: dict[str, str] = {}
    for place, (name, where) in enumerate(placements.items()):
        is_late = not chosen.placement_is_given and deadline.for_partitions()()
        if is_late and any(why_infeasible(one.problem, one.choice) is None for one in found):
            # Large problems: what nobody named is left out.
            talk(f"not tried, for lack of time: {', '.join([*placements][place:])}")
            break
        if sizes is not None and len(sizes) != where.num_stages:
            refusals[name] = f"it has {where.num_stages} stages, --partition {len(sizes)}"
            continue
        try:
            should_stop = deadline.for_partitions(place + 1, len(placements))
            problem = asked_problem(
                profile,
                where,
                num_micro_batches=num_micro_batches,
                partition=partition,
                objective=objective,
                caps_bytes=caps_bytes,
                should_stop=should_stop,
                recomputed_layers=recomputed_layers,
                chooses_layers=chooses_layers,
            )
        except SynthError as error:
            refusals[name] = str(error)
            continue
        found.append(Candidate(name, problem, read_recompute(recompute, where.num_stages)))
    if not found:
        name, why = next(iter(refusals.items()))
        raise SynthError(
            f"--placement {AUTO}: no placement is possible; {name}: {why}"
            if _is_auto(placement) and chosen.placement_is_given
            else why
        )
    # Nobody asked for a placement that cannot be, where none was named.
    return Candidates(tuple(found), refusals if chosen.placement_is_given else {})


def _placements(name: str, num_ranks: int, num_layers: int) -> "dict[str, Placement]":
    from synth.plan.choose.candidates import placements_to_try
    from synth.schedule.placements import placement

    if _is_auto(name):
        return placements_to_try(num_ranks, num_layers)
    return {name: placement(name, num_ranks)}


def check_goes_with_choice(chosen: SolveChoices, target: str | None, hint: str | None) -> None:
    """Refuse what is for one placement, or for one partition of it.

    Raises:
        SynthError: a hint; a target and several placements, or one that is no time.
    """
    left, way_out = f"--partition {SEARCH}", f"give layers per stage or {EVEN}"
    is_placed = not _is_auto(chosen.placement)
    if not is_placed:
        left, way_out = f"--placement {AUTO}", "name the placement (linear, looped:2, v, …)"
    elif not is_searched(chosen.partition):
        return
    is_for_one = target is not None and (not is_placed or is_steady(target))
    given = "--hint" if hint is not None else "--target" if is_for_one else None
    if given is not None:
        raise SynthError(
            f"{given} and {left} do not go together, as it is for one placement in one partition; "
            f"{way_out}, or leave {given} out"
        )


def solve_candidates(request: Request, candidates: Candidates, format: Format) -> None:
    """Search for all, save every improvement, and answer.

    Raises:
        NoSchedule: nothing was found.
    """
    from synth.plan.choose.candidates import Partitioning
    from synth.plan.choose.trials import solve_best_of

    announce_sizes(request)
    names = {candidate.problem.placement: candidate.name for candidate in candidates.them}
    if len(names) > 1 or candidates.refusals:
        talk(f"placements to try: {', '.join(names.values())}")
    for name, why in candidates.refusals.items():
        talk(f"not {name}: {why}")
    last: ProgressReporter | None = None
    so_far, deadline = BestSoFar(), request.deadline

    def listener(problem: "Problem") -> "Callable[[Incumbent], None]":
        nonlocal last
        trial = request.on(problem)
        if last is None or not last.is_of(trial):
            talk(f"on {names[problem.placement]}: {_sizes(problem)}")
            last = ProgressReporter(trial)
        return so_far.listening(problem, last)

    chosen = run_interruptibly(
        lambda stop: solve_best_of(
            candidates.them, request.as_run, request.partitioning, request.options, listener, stop
        ),
        deadline.until(),
        lambda: _chosen(so_far.result(deadline.elapsed_s), candidates.them),
    )
    more = _table(
        chosen,
        with_partitions=request.partitioning == Partitioning.SEARCHED or request.recompute != (),
    )
    finish(request, chosen.result, format, more, {"candidates": _trials_json(chosen)})


def _chosen(found: "Result | None", candidates: "Sequence[Candidate]") -> "Chosen | None":
    """Take the best so far for the answer; its bound holds for the other candidates too."""
    from synth.plan.choose.candidates import Chosen, Trial

    if found is None:
        return None
    trials = []
    for candidate in candidates:
        is_best = candidate.problem.placement == found.problem.placement
        result = found if is_best else None
        trials.append(Trial(candidate, found.lower_bound_us, result))
    trials.sort(key=lambda one: one.found is None)
    return Chosen(found, tuple(trials), is_cut_short=True)


def _table(chosen: "Chosen", *, with_partitions: bool) -> str:
    """A row for each candidate, the best one first; with the layers of each stage."""
    best, objective = chosen.result, chosen.result.problem.objective
    header = ["placement", f"{objective.words}\nms", "lower bound\nms", "gap", "peak"]
    rows = [[trial.name, *_row(trial, chosen)] for trial in chosen.trials]
    if with_partitions:
        header.append("layers per stage")
        rows = [
            [*row, _sizes(trial.problem)] for row, trial in zip(rows, chosen.trials, strict=True)
        ]
    scope = "the placements and partitions in this table"
    if best.bound_scope == BoundScope.ALL:
        scope = "all partitions"
    return (
        f"{table(header, rows)}\n\nbest: {chosen.name}, {_sizes(best.problem)}; the bound below, "
        f"{milliseconds(best.lower_bound_us)} ms, holds for {scope}"
    )


def _sizes(problem: "Problem") -> str:
    return ",".join(map(str, problem.partition or ()))


def _row(trial: "Trial", chosen: "Chosen") -> list[str]:
    """Value, bound, gap and peak; or why there are none."""
    bound = milliseconds(trial.lower_bound_us)
    if trial.is_impossible:
        return ["infeasible", "", "", ""]
    if trial.found is None:
        return [_without_result(trial, chosen), bound, "", ""]
    value_us, peak_bytes = trial.value_us, trial.found.peak_bytes
    if trial.gap is None or value_us is None or peak_bytes is None:
        return ["none found", bound, "", ""]
    return [milliseconds(value_us), bound, percent(trial.gap), format_bytes(max(peak_bytes))]


def _without_result(trial: "Trial", chosen: "Chosen") -> str:
    state, best_us = "no result" if chosen.is_cut_short else "not tried", chosen.result.value_us
    if best_us is None:
        return state
    left = 1 - trial.lower_bound_us / best_us
    return "cannot win" if left <= 0 else f"{state}: at most {percent(left)} less"


def _trials_json(chosen: "Chosen") -> list[dict[str, Any]]:
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


def preview_candidates(request: Request, candidates: Candidates, format: Format) -> None:
    """Answer with what each placement makes of the model, and whether anything can fit.

    Raises:
        Infeasible: no schedule can keep the caps on any of them.
    """
    from synth.plan.choose.race import nothing_fits
    from synth.plan.recompute.choice import needs_bytes, why_infeasible

    asked = [(candidate.problem, candidate.choice) for candidate in candidates.them]
    shortages = [why_infeasible(*each) for each in asked]
    needs = [max(needs_bytes(*each)) for each in asked]
    factor, unit = size_unit(max(needs))
    rows, found = [], []
    for (name, problem, _), shortage, need in zip(candidates.them, shortages, needs, strict=True):
        fits = "no" if shortage else "yes"
        rows.append([name, f"{need / factor:,.3f}", fits, _sizes(problem)])
        found.append(
            {
                "name": name,
                "placement": problem.placement.ranks,
                "partition": problem.partition,
                "needed_bytes": need,
                "feasible": shortage is None,
                "message": shortage,
            }
        )
    if format == Format.JSON:
        answer_json({"candidates": found, "refused": candidates.refusals})
    else:
        header = ["placement", f"least need\n{unit}", "can fit", "layers per stage"]
        refused = [f"not {name}: {why}" for name, why in candidates.refusals.items()]
        answer("\n".join((table(header, rows), "", *refused, request.limit.explanation)))
    if all(shortages):
        least = needs.index(min(needs))
        raise Infeasible(nothing_fits(candidates.them[least].name, shortages[least] or ""))
