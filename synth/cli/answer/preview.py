"""`synth solve --dry-run`: stages and costs of the problem, and feasibility of memory limits."""

from typing import Any

from synth.cli.answer.candidates import sizes
from synth.cli.answer.output import Format, answer, answer_json
from synth.errors import ExitCode, SynthError
from synth.op_kinds import MEASURED
from synth.option_names import named
from synth.options.request import Request
from synth.options.solve_task import SolveTask
from synth.plan.choose.ranking import why_all_infeasible
from synth.plan.memory_curve.least_cap_search import LeastForTime
from synth.plan.offload.offload_space import WithOffloads
from synth.plan.recompute.choice import limits_bytes, needs_bytes, why_infeasible
from synth.plan.search_space import Placements, WeightPlaces, WithoutFlush
from synth.report.text.tables import milliseconds, size_unit, table
from synth.solver.flush_free.flush_free_problem import FlushFreeProblem
from synth.units import format_bytes

_UNDECIDED = (
    "not decided before the search: each rank alone fits with one micro-batch at a time and one "
    "version of its weights"
)


def preview(task: SolveTask, format: Format) -> None:
    """Answer with stages, costs and limits, or with the least memory of each candidate.

    Raises:
        SynthError: no schedule is within the memory limits; the message has the reason and a way
            out.
    """
    request, space = task.request, task.space
    space = space.space if isinstance(space, LeastForTime | WithOffloads) else space
    if isinstance(space, WeightPlaces):
        _preview_weights(request, space, format)
    elif isinstance(space, Placements) and task.has_several:
        _preview_placements(task, space, format)
    else:
        flush_free = space.flush_free if isinstance(space, WithoutFlush) else None
        _preview_one(request, format, flush_free)


def _preview_weights(request: Request, space: WeightPlaces, format: Format) -> None:
    rows, found, caps = [], [], request.limit.caps_bytes
    for one in space.moving:
        name, need = one.name, one.needed_bytes
        fits = caps is None or min(caps) >= need
        rows.append([name, format_bytes(need), "yes" if fits else "no", sizes(one.problem)])
        found.append({"name": name, "needed_bytes": need, "feasible": fits})
    if format == Format.JSON:
        answer_json({"candidates": found})
    else:
        header = ["weights", "least need", "can fit", "layers per stage"]
        answer("\n".join((table(header, rows), "", request.limit.explanation)))


def _preview_placements(task: SolveTask, space: Placements, format: Format) -> None:
    candidates = space.candidates
    shortages = [why_infeasible(each.problem, each.choice) for each in candidates]
    needs = [max(needs_bytes(each.problem, each.choice)) for each in candidates]
    factor, unit = size_unit(max(needs))
    rows, found = [], []
    for each, shortage, need in zip(candidates, shortages, needs, strict=True):
        name, problem = each.name, each.problem
        fits = "no" if shortage else "yes"
        rows.append([name, f"{need / factor:,.3f}", fits, sizes(problem)])
        found.append(
            {
                "name": name,
                "placement": problem.placement.ranks,
                "partition": problem.partition,
                "needed_bytes": need,
                "feasible": shortage is None,
                "message": shortage and named(shortage),
            }
        )
    if format == Format.JSON:
        answer_json({"candidates": found, "refused": dict(task.refusals)})
    else:
        header = ["placement", f"least need\n{unit}", "can fit", "layers per stage"]
        refused = [f"not {name}: {why}" for name, why in task.refusals.items()]
        answer("\n".join((table(header, rows), "", *refused, task.request.limit.explanation)))
    if all(shortages):
        least = needs.index(min(needs))
        why = why_all_infeasible(candidates[least].name, shortages[least] or "")
        raise SynthError(why, ExitCode.INFEASIBLE)


def _preview_one(request: Request, format: Format, flush_free: FlushFreeProblem | None) -> None:
    shortage = why_infeasible(request.problem, request.recompute)
    if format == Format.JSON:
        answer_json(
            {
                "partition": request.partition,
                "placement": request.problem.placement.ranks,
                "caps_bytes": request.problem.caps_bytes,
                "costs": request.problem.costs.model_dump(mode="json"),
                "feasible": shortage is None,
                "message": shortage and named(shortage),
                **_versions_json(flush_free),
            }
        )
    else:
        answer(f"{_stages(request)}\n\n{request.limit.explanation}")
        if flush_free is not None:
            answer(_versions(flush_free))
    if shortage is not None:
        raise SynthError(shortage, ExitCode.INFEASIBLE)
    if format == Format.TEXT and request.problem.caps_bytes is not None:
        answer(_feasibility(request) if flush_free is None else _UNDECIDED)


def _versions(flush_free: FlushFreeProblem) -> str:
    most = _most_versions(flush_free)
    return (
        f"--versions {flush_free.name}: never flushed; {flush_free.rule}; at most {most} "
        f"versions of a stage, which memory limits count"
    )


def _versions_json(flush_free: FlushFreeProblem | None) -> dict[str, Any]:
    if flush_free is None:
        return {}
    rule = flush_free.rule
    return {
        "versions": {
            "every": rule.every,
            "forward": rule.forward,
            "backward": rule.backward,
            "most": _most_versions(flush_free),
        }
    }


def _most_versions(flush_free: FlushFreeProblem) -> int:
    """The most versions of a stage that the search tries, with the newest one."""
    return 1 + max(flush_free.stashed_to_try, default=0)


def _feasibility(request: Request) -> str:
    """Say if memory limits that pass the closed-form check are known to be feasible."""
    caps = request.problem.caps_bytes
    if caps is None or min(caps) >= limits_bytes(request.problem, request.recompute)[1]:
        if caps is None or request.allowed.orders_freely:
            return "feasible: every rank fits with one micro-batch at a time"
        return (
            f"not decided before the search: every rank fits with one micro-batch at a time, "
            f"{request.allowed.runtime} has orders of its own"
        )
    return (
        "not decided before the search: each rank alone fits with one micro-batch at a time, the "
        "simplest schedule of all together does not"
    )


def _stages(request: Request) -> str:
    stages = request.problem.costs.stages
    factor, unit = size_unit(max(s.static_bytes + s.saved_bytes for s in stages))
    ranks = zip(*request.problem.placement.ranks, strict=True)
    on_ranks = [", ".join(map(str, held)) for held in ranks]
    header = ["stage", "rank", "layers", *(f"{kind}\nms" for kind in MEASURED)]
    header += [
        f"{name}\n{unit}"
        for name in ("static", "saved\nactivations", "retained\nfor W", "boundary")
    ]
    rows = []
    for index, stage in enumerate(stages):
        sizes = (stage.static_bytes, stage.saved_bytes, stage.saved_w_bytes, stage.output_bytes)
        rows.append(
            [
                str(index),
                on_ranks[index],
                str(request.partition[index]),
                *(milliseconds(stage.duration_us[kind]) for kind in MEASURED),
                *(f"{size / factor:,.3f}" for size in sizes),
            ]
        )
    return table(header, rows)
