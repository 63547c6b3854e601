"""The exact optimum of small problems with all-gathers, by CP-SAT in a process of its own."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import NamedTuple

from synth.op_kinds import OpKind
from synth.schedule.model import Buffering, Schedule
from synth.schedule.ops import Op
from synth.schedule.weight_flow import Sharded
from synth.solver.cpsat.or_tools import cp_model
from synth.solver.cpsat.parameters import quiet
from synth.solver.cpsat.restarting_call import ask, has_values
from synth.solver.cpsat.run import Values
from synth.solver.options import SolveOptions
from synth.solver.tuning import CPSAT
from synth.solver.weight_passing.bounds import level_bound_us, levels_that_may_fit
from synth.solver.weight_passing.exact_gather_model import GatherModel
from synth.solver.weight_passing.exact_proof import ExactProof
from synth.solver.weight_passing.problem import WeightPassingProblem
from synth.solver.weight_passing.programs import of_rank


def prove_gathers(
    passing: WeightPassingProblem,
    best_us: int | None,
    options: SolveOptions,
    limit_s: float,
    should_stop: Callable[[], bool] = lambda: False,
) -> ExactProof:
    """Look for a schedule below a makespan, or prove that there is none.

    Args:
        passing: the problem, with weights that are gathered.
        best_us: a makespan that is known; None: none is.
        options: workers, seed, and what the limit counts.
        limit_s: seconds of the clock, or deterministic ones, for all kinds of sharded state.
        should_stop: polled; the search ends soon after it returns True.
    """
    below_us = _longest_us(passing) + 1 if best_us is None else best_us
    bounds, schedule, spent_s = [], None, 0.0
    levels = levels_that_may_fit(passing)
    for index, sharded in enumerate(levels):
        least_us = level_bound_us(passing, sharded)
        if least_us < below_us and not should_stop():
            part_s = (limit_s - spent_s) / (len(levels) - index)
            found = solve_level(passing, sharded, below_us - 1, options, part_s, should_stop)
            spent_s += found.spent_s
            least_us = max(least_us, min(found.bound_us, below_us))
            if found.schedule is not None:
                schedule, below_us = found.schedule, found.value_us
        bounds.append(least_us)
    bound_us = min([below_us, *bounds])
    return ExactProof(bound_us, schedule, bound_us >= below_us, spent_s)


class SolvedLevel(NamedTuple):
    """The outcome of the model of one kind of sharded state.

    Attributes:
        bound_us: a lower bound on the makespan, at most one more than the largest that counts.
        schedule: the best one found.
        value_us: its makespan; without a schedule one more than the largest that counts.
        spent_s: seconds of the clock, or deterministic ones.
    """

    bound_us: int
    schedule: Schedule | None
    value_us: int
    spent_s: float


def solve_level(
    passing: WeightPassingProblem,
    sharded: Sharded,
    most_us: int,
    options: SolveOptions,
    limit_s: float,
    should_stop: Callable[[], bool] = lambda: False,
) -> SolvedLevel:
    """Solve the model of one kind of sharded state, for makespans up to `most_us`."""
    began_s = time.monotonic()
    model = GatherModel(passing, sharded, most_us)
    workers = 1 if options.deterministic else options.num_workers
    parameters = quiet(options.seed, workers, repeatable=options.deterministic)
    shortest_s = max(limit_s, CPSAT.shortest_limit_s)
    if options.deterministic:
        parameters.max_deterministic_time = shortest_s
    else:
        parameters.max_time_in_seconds = shortest_s
    answer = ask(model.cp.proto, parameters, lambda _: None, should_stop)
    if answer.status == cp_model.MODEL_INVALID:
        raise RuntimeError(f"CP-SAT rejects a model: {answer.info}")
    clock_s = time.monotonic() - began_s
    spent_s = answer.deterministic_s if options.deterministic else clock_s
    if answer.status == cp_model.INFEASIBLE:
        return SolvedLevel(most_us + 1, None, most_us + 1, spent_s)
    bound_us = max(0, math.ceil(answer.bound - CPSAT.bound_tolerance))
    if not has_values(answer.status):
        return SolvedLevel(bound_us, None, most_us + 1, spent_s)
    program, window = model.read(Values(answer.values).value)
    schedule = _schedule(passing, sharded, program, window)
    return SolvedLevel(bound_us, schedule, round(answer.objective), spent_s)


def _longest_us(passing: WeightPassingProblem) -> int:
    """A makespan that suffices even if no two ops or transfers run at the same time."""
    longest_us = 0
    for number, stage in enumerate(passing.stages):
        us = stage.duration_us
        ops_us = us[OpKind.F] + max(us[OpKind.BW], us[OpKind.B] + us[OpKind.W])
        collectives_us = 2 * passing.gather_us(number) + passing.scatter_us(number)
        longest_us += passing.rounds * (ops_us + collectives_us) + passing.step_us(number)
    return longest_us


def _schedule(
    passing: WeightPassingProblem, sharded: Sharded, program: list[Op], window: int
) -> Schedule:
    problem, ops = passing.problem, _used(program)
    programs = tuple(tuple(of_rank(passing, rank, ops)) for rank in range(passing.num_ranks))
    return Schedule(
        problem.placement,
        problem.num_micro_batches,
        programs,
        f"synth {passing.movement}",
        Buffering(send_behind=window),
        weights=passing.flow(sharded),
    )


def _used(program: list[Op]) -> list[Op]:
    """Leave out visits whose weights nothing reads."""
    found: list[Op] = []
    opened: dict[int, Op] = {}
    for op in program:
        if op.kind == OpKind.UNSHARD:
            if op.stage in opened:
                found.remove(opened[op.stage])
            opened[op.stage] = op
        elif op.kind in (OpKind.F, OpKind.B, OpKind.BW):
            opened.pop(op.stage, None)
        found.append(op)
    return [op for op in found if op not in opened.values()]
