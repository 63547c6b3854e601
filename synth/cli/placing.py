"""`synth solve --placement auto`: every usual placement is tried, and the best one is told."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from synth.cli.interrupt import run_interruptibly
from synth.cli.limits import read_recompute, read_sizes
from synth.cli.options import asked_problem
from synth.cli.output import Format, answer, answer_json, percent, talk
from synth.cli.preview import Infeasible
from synth.cli.progress import Progress
from synth.cli.request import Request, announce_sizes
from synth.cli.search import finish
from synth.errors import SynthError
from synth.profile import Profile
from synth.report.tables import milliseconds, size_unit, table
from synth.units import format_bytes

if TYPE_CHECKING:
    from synth.plan.placing import Candidate, Placed, Tried
    from synth.solve.problem import Problem

AUTO = "auto"


@dataclass(frozen=True)
class Placements:
    """Those to choose from, at least one, and of the others by name why they cannot be."""

    candidates: "tuple[Candidate, ...]"
    refusals: dict[str, str]


def is_auto(placement: str) -> bool:
    """Whether the choice is left to the search."""
    return placement.strip().lower() == AUTO


def usual_placements(
    profile: Profile,
    num_ranks: int,
    num_micro_batches: int,
    partition: str,
    objective: str,
    caps_bytes: tuple[int, ...] | None,
    *,
    recompute: str,
) -> Placements:
    """The usual placements, each with the problem that `asked_problem` makes of it.

    A partition that is given leaves those with as many stages.

    Raises:
        SynthError: what `asked_problem` refuses on all of them, or stages of one placement given.
    """
    from synth.plan.placing import Candidate
    from synth.schedule.placements import usual

    sizes = read_sizes(partition)
    candidates, refusals = [], {}
    for name, where in usual(num_ranks).items():
        if sizes is not None and len(sizes) != where.num_stages:
            refusals[name] = f"it has {where.num_stages} stages, --partition {len(sizes)}"
            continue
        asked = (profile, where, num_micro_batches, partition, objective, caps_bytes)
        try:
            problem = asked_problem(*asked)
        except SynthError as error:
            refusals[name] = str(error)
            continue
        candidates.append(Candidate(name, problem, _choice(recompute, where.num_stages)))
    if not candidates:
        name, why = next(iter(refusals.items()))
        raise SynthError(f"--placement {AUTO}: no placement can be; {name}: {why}")
    return Placements(tuple(candidates), refusals)


def _choice(recompute: str, num_stages: int) -> tuple[int, ...] | None:
    """Which stages recompute, in words that hold for every placement."""
    choice = read_recompute(recompute, num_stages)
    if choice is not None and len(choice) not in (0, num_stages):
        raise SynthError(
            f"--recompute {recompute} names stages of one placement; with --placement {AUTO} give "
            f"none, all or auto"
        )
    return choice


def check_goes_with_auto(target: str | None, hint: str | None) -> None:
    """Refuse what is for one placement.

    Raises:
        SynthError: a target or a hint.
    """
    given = "--hint" if hint is not None else "--target" if target is not None else None
    if given is not None:
        raise SynthError(
            f"{given} and --placement {AUTO} do not go together, as it is for one placement; name "
            f"the placement (linear, looped:2, v, …), or leave {given} out"
        )


def solve_placements(request: Request, placements: Placements, format: Format) -> None:
    """Search on all, save every improvement, and answer.

    Raises:
        NoSchedule: nothing was found.
    """
    from synth.plan.placing import solve_placing

    announce_sizes(request)
    names = {candidate.problem.placement: candidate.name for candidate in placements.candidates}
    talk(f"placements to try: {', '.join(names.values())}{_left_out(placements)}")

    def listener(problem: "Problem") -> Progress:
        trial = request.on(problem)
        talk(f"on {names[problem.placement]}: {','.join(map(str, trial.partition))}")
        return Progress(trial)

    profile = None if request.has_partition else request.profile
    placed = run_interruptibly(
        lambda stop: solve_placing(placements.candidates, profile, request.options, listener, stop)
    )
    tried = {"placements": _tried(placed)}
    finish(request, placed.result, format, _table(placed), tried)


def _left_out(placements: Placements) -> str:
    if not placements.refusals:
        return ""
    return f" (not {', '.join(placements.refusals)}, which this model or --partition rules out)"


def _table(placed: "Placed") -> str:
    """A row for each placement, the best one first."""
    objective = placed.result.problem.objective
    rows = []
    for tried in placed.tried:
        value_us, found = tried.value_us, tried.found
        bound = milliseconds(tried.lower_bound_us)
        if tried.gap is None or value_us is None or found is None or found.peak_bytes is None:
            why = _why_none(tried)
            rows.append([tried.name, why, "" if tried.is_impossible else bound, "", ""])
            continue
        cells = (milliseconds(value_us), bound, percent(tried.gap))
        rows.append([tried.name, *cells, format_bytes(max(found.peak_bytes))])
    header = ["placement", f"{objective.words}\nms", "lower bound\nms", "gap", "peak"]
    best, bound_us = placed.name, placed.result.lower_bound_us
    return (
        f"{table(header, rows)}\n\nbest placement {best}; the bound below, "
        f"{milliseconds(bound_us)} ms, holds for all of them, each cut as it was"
    )


def _why_none(tried: "Tried") -> str:
    if tried.is_impossible:
        return "nothing fits"
    return "cannot win" if tried.found is None else "none found"


def _tried(placed: "Placed") -> list[dict[str, Any]]:
    return [
        {
            "name": tried.name,
            "value_us": tried.value_us,
            "lower_bound_us": None if tried.is_impossible else tried.lower_bound_us,
            "peak_bytes": None if tried.found is None else tried.found.peak_bytes,
            "seconds": round(tried.seconds, 3),
        }
        for tried in placed.tried
    ]


def preview_placements(request: Request, placements: Placements, format: Format) -> None:
    """Answer with what each placement makes of the model, and whether anything can fit.

    Raises:
        Infeasible: no schedule can keep the caps on any of them.
    """
    from synth.plan.placing import nothing_fits
    from synth.solve.feasible import find_shortage, needed_bytes

    shortages = [find_shortage(candidate.problem) for candidate in placements.candidates]
    needs = [max(needed_bytes(candidate.problem)) for candidate in placements.candidates]
    factor, unit = size_unit(max(needs))
    rows, found = [], []
    for (name, problem, _), shortage, need in zip(
        placements.candidates, shortages, needs, strict=True
    ):
        cut = ",".join(map(str, problem.partition or ()))
        rows.append([name, f"{need / factor:,.3f}", "no" if shortage else "yes", cut])
        found.append(
            {
                "name": name,
                "placement": problem.placement.ranks,
                "partition": problem.partition,
                "needed_bytes": need,
                "feasible": shortage is None,
                "message": None if shortage is None else str(shortage),
            }
        )
    if format == Format.JSON:
        answer_json({"placements": found, "refused": placements.refusals})
    else:
        header = ["placement", f"least need\n{unit}", "can fit", "layers per stage"]
        refused = [f"not {name}: {why}" for name, why in placements.refusals.items()]
        answer("\n".join((table(header, rows), "", *refused, request.limit.explanation)))
    if all(shortages):
        least = needs.index(min(needs))
        raise Infeasible(nothing_fits(placements.candidates[least].name, str(shortages[least])))
