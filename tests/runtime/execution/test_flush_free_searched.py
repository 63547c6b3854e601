"""Schedules with B and W apart and without a flush: weights equal those of 2BW's recurrence."""

from dataclasses import replace

import pytest
import torch

from synth.costs.costs import uniform_costs
from synth.op_kinds import OpKind
from synth.profile.links import Link, Links
from synth.schedule.model import Schedule
from synth.schedule.ops import Op
from synth.schedule.weight_versions import ForwardReads, WeightVersions
from synth.solver.flush_free.flush_free_problem import Consistency, FlushFreeProblem
from synth.solver.flush_free.search import solve_flush_free
from synth.solver.options import SolveOptions
from synth.solver.problem import Problem
from tests.runtime.execution.test_flush_free import OPTIMIZERS, by_autograd, train
from tests.runtime.rank_threads import RankThreads
from tests.runtime.replaying import build_stages


def _reads(stage: int, micro_batch: int, every: int) -> tuple[int, int]:
    version = max(0, micro_batch // every - 1)
    return version, version


def test_a_searched_schedule_with_b_and_w_apart_trains_as_2bw_s_recurrence_says() -> None:
    n, m, k = 2, 16, 4
    costs = uniform_costs(
        n,
        forward_us=100,
        backward_input_us=100,
        backward_weight_us=100,
        parameter_bytes=1,
        gradient_bytes=1,
        static_bytes=4,
        links=Links(default=Link(latency_us=130)),
    )
    asked = FlushFreeProblem(Problem.linear(costs, m), Consistency.TWO_VERSIONS, k)
    schedule = solve_flush_free(asked, SolveOptions(deterministic=True, workers=1)).schedule
    assert schedule is not None
    ops = [op for program in schedule.programs for op in program]
    assert any(op.kind == OpKind.W for op in ops)
    by_rank = RankThreads().run(train, n, [schedule], False, "adamw")
    stages = build_stages(n)
    by_autograd(stages, _reads, k, m, "adamw")
    for rank, stage in enumerate(stages):
        ((weights,), _, left) = by_rank[rank][0]
        assert left == 0
        assert all(map(torch.equal, weights, stage.parameters()))


# On rank 0 B2 stands before the update of micro-batches 0 and 1, and B4 before that of 2 and 3.
EARLY = (
    "F0.0 F0.1 B0.0 B0.1 W0.0 F0.2 B0.2 W0.1 STEP0 W0.2 F0.3 B0.3 F0.4 B0.4 W0.3 STEP0.1 "
    "F0.5 B0.5 W0.4 W0.5 STEP0.2 F0.6 B0.6 W0.6 F0.7 B0.7 W0.7 STEP0.3",
    "F1.0 B1.0 W1.0 F1.1 B1.1 W1.1 STEP1 F1.2 B1.2 W1.2 F1.3 B1.3 W1.3 STEP1.1 "
    "F1.4 B1.4 W1.4 F1.5 B1.5 W1.5 STEP1.2 F1.6 B1.6 W1.6 F1.7 B1.7 W1.7 STEP1.3",
)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_b_ahead_of_the_update_of_the_batch_before_adds_nothing_to_it(optimizer: str) -> None:
    """The gradients of norms, which B computes itself, belong to the update of their W."""
    programs = [[Op.parse(text) for text in program.split()] for program in EARLY]
    made = Schedule.linear("early", 8, programs)
    rule = WeightVersions(2, ForwardReads.PREVIOUS_BATCH)
    by_rank = RankThreads().run(train, 2, [replace(made, versions=rule)], False, optimizer)
    stages = build_stages(2)
    by_autograd(stages, _reads, 2, 8, optimizer)
    for rank, stage in enumerate(stages):
        ((weights,), _, left) = by_rank[rank][0]
        assert left == 0
        assert all(map(torch.equal, weights, stage.parameters()))
