"""A searched schedule without a flush, replayed: weights equal those of 2BW's recurrence."""

import torch

from synth.costs import uniform_costs
from synth.links import Link, Links
from synth.op_kinds import OpKind
from synth.solver.flush_free.flush_free_problem import Consistency, FlushFreeProblem
from synth.solver.flush_free.search import solve_flush_free
from synth.solver.options import SolveOptions
from synth.solver.problem import Problem
from tests.runtime.rank_threads import RankThreads
from tests.runtime.replaying import build_stages
from tests.runtime.test_flush_free import by_autograd, train


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
