"""The published schedule of data parallelism: there is no order to search.

Each rank runs one micro-batch after another, which needs the least memory, and gradients are
reduced as soon as they are complete.
"""

from dataclasses import replace

from synth.families import generate
from synth.objective import Spans
from synth.op_kinds import OpKind
from synth.plan.choose.candidates import Candidate, Trial
from synth.schedule.files.certificate import ProvenBound
from synth.schedule.rank_memory import exceeds_caps
from synth.search.outcome import StoppedBy
from synth.solver.evaluate.evaluate import EvaluatedSchedule, evaluate
from synth.solver.options import SolveOptions
from synth.solver.problem import Problem
from synth.solver.search_state import SearchState
from synth.solver.weight_passing.rank_work import backward_us

DATA_PARALLEL = "data-parallel"


def data_parallel(problem: Problem) -> EvaluatedSchedule | None:
    """Return the schedule, whether or not it fits; None if the placement has other stages."""
    schedule = generate(DATA_PARALLEL, problem.num_ranks, problem.num_micro_batches)
    if schedule.placement != problem.placement:
        return None
    return evaluate(replace(problem, caps_bytes=None), schedule, DATA_PARALLEL)


def data_parallel_trial(candidate: Candidate, options: SolveOptions) -> Trial:
    """Return the trial of this only schedule."""
    problem = candidate.problem
    state = SearchState(problem, options)
    state.raise_bound(ProvenBound.by_closed_forms(_bound_us(problem)))
    alone = data_parallel(problem)
    if alone is not None and not exceeds_caps(alone.peak_bytes, problem.caps_bytes):
        state.offer(alone)
    message = "a copy of the model on every rank exceeds the memory limit"
    stopped_by = StoppedBy.INFEASIBLE if state.best is None else StoppedBy.NOTHING_BETTER
    found = state.result(stopped_by, message)
    return Trial(
        candidate,
        found.lower_bound_us,
        found,
        is_over=True,
        least_bytes=None if alone is None else max(alone.peak_bytes),
    )


def _bound_us(problem: Problem) -> int:
    """The work of the rank with most micro-batches, and the last reduction and STEPs after it."""
    rounds = -(-problem.num_micro_batches // problem.num_ranks)
    stages = problem.costs.stages
    work_us = rounds * sum(stage.duration_us[OpKind.F] + backward_us(stage) for stage in stages)
    held = range(len(stages))
    steps_us = [problem.costs.step_us(stage, held) for stage in held]
    last_us = min(problem.reduction_us(stage) + us for stage, us in enumerate(steps_us))
    us = work_us + max(last_us, sum(steps_us))
    return problem.objective.value_us(Spans(us, us))
