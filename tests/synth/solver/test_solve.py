"""The solver on instances with known answers, its stops, and its explanation of infeasibility."""

import random
import threading
from dataclasses import replace

import pytest

from synth.costs.costs import Costs, uniform_costs
from synth.costs.stage_costs import StageCosts
from synth.errors import SynthError
from synth.families import generate
from synth.objective import Objective
from synth.op_kinds import MEASURED, OpKind
from synth.profile.links import Link, Links
from synth.schedule.model import Placement, Schedule
from synth.schedule.ops import Op
from synth.schedule.rank_memory import peak_bytes
from synth.schedule.verify import verify
from synth.search.outcome import StoppedBy
from synth.solver.improve import published
from synth.solver.infeasibility import find_shortage, one_micro_batch_bytes, serial_schedule
from synth.solver.instance.memory_models import relaxed_memory
from synth.solver.options import SolveOptions
from synth.solver.problem import Problem
from synth.solver.result import Incumbent
from synth.solver.solver import solve
from synth.solver.tuning import PUBLISHED
from synth.solver.watch import SolveWatch
from tests.synth.effort import HOURS_S, counted


def table_costs(num_ranks: int) -> Costs:
    """F 55, B 58, W 35, 2 between ranks; F keeps 3, of which 2 are left after B."""
    return uniform_costs(
        num_ranks,
        forward_us=55,
        backward_input_us=58,
        backward_weight_us=35,
        links=Links(default=Link(latency_us=2)),
        saved_bytes=3,
        saved_w_bytes=2,
    )


def table_problem(num_ranks: int, m: int, share: float) -> Problem:
    """A cap of `share` times what 1F1B holds on rank 0."""
    return Problem.linear(table_costs(num_ranks), m, int(share * 3 * num_ranks))


@pytest.mark.parametrize(
    ("num_ranks", "m", "share", "optimum_us"),
    [
        (4, 8, 0.75, 1676),
        (4, 12, 1, 2034),
        (4, 12, 0.75, 2416),
        (8, 8, 0.5, 2378),
        (8, 16, 1, 2970),
        (8, 32, 1, 5338),
        (16, 16, 0.75, 4250),
    ],
)
def test_known_optima_are_proven(num_ranks: int, m: int, share: float, optimum_us: int) -> None:
    result = solve(table_problem(num_ranks, m, share), counted())
    assert (result.value_us, result.lower_bound_us) == (optimum_us, optimum_us)
    assert result.stopped_by == StoppedBy.OPTIMAL


def test_the_first_incumbent_needs_no_search_and_values_only_fall() -> None:
    seen: list[Incumbent] = []
    solve(table_problem(4, 12, 0.75), counted(), SolveWatch(seen.append))
    values = [incumbent.value_us for incumbent in seen]
    bounds = [incumbent.lower_bound_us for incumbent in seen]
    assert seen[0].found_by == "zb-limit" and len(seen) > 2
    assert values == sorted(values, reverse=True) and bounds == sorted(bounds)


def test_published_profile_is_solved_to_zb_h1s_period_in_1f1bs_memory() -> None:
    # Zero-bubble paper, 1.5B on 8 ranks: both measured there in 1F1B's memory of 8 micro-batches.
    costs = uniform_costs(
        8,
        forward_us=18522,
        backward_input_us=18086,
        backward_weight_us=9337,
        links=Links(default=Link(latency_us=601)),
        saved_bytes=34,
        saved_w_bytes=32,
    )
    result = solve(Problem.linear(costs, 24, 8 * 34, Objective.PERIOD), counted(1))
    zb_h1 = next(baseline for baseline in result.baselines if baseline.name == "zb-h1")
    assert result.value_us is not None and result.value_us <= zb_h1.period_us


def test_an_event_from_another_thread_stops_the_search_with_the_best_so_far() -> None:
    # Minutes to prove; without the stop it would go on for an hour.
    stop = threading.Event()
    timer = threading.Timer(2.0, stop.set)
    timer.start()
    options = SolveOptions(time_limit_s=HOURS_S, workers=1)
    result = solve(table_problem(8, 32, 0.75), options, watch=SolveWatch(stop=stop))
    assert result.stopped_by == StoppedBy.INTERRUPT
    assert result.wall_s < 60
    assert result.schedule is not None


def test_a_stop_before_the_start_still_gives_the_best_family(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(published, "PUBLISHED", replace(PUBLISHED, grace_s=HOURS_S))
    stop = threading.Event()
    stop.set()
    result = solve(table_problem(4, 12, 1), watch=SolveWatch(stop=stop))
    assert result.found_by == "zb-h1"


def test_a_wide_gap_is_accepted_when_asked_for() -> None:
    result = solve(table_problem(8, 16, 0.5), counted(gap=0.2))
    assert result.stopped_by == StoppedBy.GAP
    assert result.gap is not None and result.gap <= 0.2


def test_deterministic_search_repeats_itself() -> None:
    options = counted(0.03, workers=2, seed=3)
    problem = table_problem(3, 10, 0.75)
    first, second = solve(problem, options), solve(problem, options)
    assert first.schedule == second.schedule
    assert first.lower_bound_us == second.lower_bound_us


def test_fewer_micro_batches_than_ranks() -> None:
    # One micro-batch through 3 ranks: 3 (55 + 58) + 4 · 2 on the way, then the W of rank 0.
    result = solve(Problem.linear(table_costs(3), 1))
    assert result.value_us == result.lower_bound_us == 3 * (55 + 58) + 4 * 2 + 35


def test_a_hint_is_never_made_worse() -> None:
    problem = table_problem(4, 8, 0.75)
    best = solve(problem, counted())
    again = solve(problem, SolveOptions(time_limit_s=0, hint=best.schedule))
    alone = solve(problem, SolveOptions(time_limit_s=0))
    assert best.value_us is not None and again.value_us is not None
    assert again.value_us <= best.value_us < (alone.value_us or 0)


def test_a_hint_for_another_problem_is_refused() -> None:
    other = Schedule.linear("other", 1, [[Op(OpKind.F, 0), Op(OpKind.BW, 0)]])
    with pytest.raises(SynthError, match="hint"):
        solve(table_problem(4, 4, 1), SolveOptions(hint=other))


def test_a_rank_without_a_stage_is_refused() -> None:
    placement = Placement(((0, 1, 3, 0),))
    with pytest.raises(SynthError, match="leaves rank 2 without a stage"):
        Problem(table_costs(4), placement, 4)


def uneven_costs() -> Costs:
    """Three stages with boundary bytes; on the middle one B adds memory."""
    costs = uniform_costs(
        3,
        forward_us=5,
        backward_input_us=6,
        backward_weight_us=4,
        saved_bytes=30,
        saved_w_bytes=20,
        output_bytes=7,
    )
    first, middle, last = costs.stages
    middle = middle.replace(
        static_bytes=100,
        saved_w_bytes=45,
        rise_bytes={**middle.rise_bytes, OpKind.B: 25, OpKind.BW: 30},
    )
    return costs.replace(stages=(first.replace(static_bytes=60), middle, last))


def test_infeasibility_names_the_smallest_limit_that_is_feasible() -> None:
    shortage = find_shortage(Problem.linear(uneven_costs(), 4, 50))
    assert shortage is not None
    least = shortage.smallest_cap_bytes
    enough = solve(Problem.linear(uneven_costs(), 4, least), counted(0.1))
    too_little = solve(Problem.linear(uneven_costs(), 4, least - 1))
    assert enough.schedule is not None
    verify(enough.schedule, uneven_costs(), (least,) * 3)
    assert too_little.schedule is None and too_little.stopped_by == StoppedBy.INFEASIBLE
    assert too_little.message is not None and f"§mem_limit:          {least}B" in too_little.message


def test_infeasibility_adds_up() -> None:
    shortage = find_shortage(Problem.linear(uneven_costs(), 4, 150))
    # Rank 1: 100 static. Its B: 30 saved, 7 of the gradient received, 25 of B's own.
    assert shortage is not None
    assert (shortage.rank, shortage.static_bytes) == (1, 100)
    assert shortage.micro_batch_bytes == 30 + 7 + 25
    assert shortage.needed_bytes == shortage.smallest_cap_bytes == 162


def test_a_hint_for_another_number_of_micro_batches_is_refused() -> None:
    # Fewer micro-batches take less time: taken for an answer, such a hint would "win".
    costs = uniform_costs(2, forward_us=3, backward_input_us=3, backward_weight_us=2)
    options = SolveOptions(hint=generate("1f1b", 2, 3))
    with pytest.raises(SynthError, match="2 ranks and 3 micro-batches"):
        solve(Problem.linear(costs, 4), options)


def test_without_time_the_serial_schedule_is_still_there() -> None:
    costs = uneven_costs()
    shortage = find_shortage(Problem.linear(costs, 4, 1))
    assert shortage is not None
    problem = Problem.linear(costs, 4, shortage.smallest_cap_bytes)
    result = solve(problem, SolveOptions(time_limit_s=0))
    assert result.found_by == "serial" and result.stopped_by == StoppedBy.TIME_LIMIT


def test_of_equally_fast_schedules_the_one_in_less_memory_is_kept() -> None:
    result = solve(table_problem(1, 4, 4))
    alike = [baseline for baseline in result.baselines if baseline.makespan_us == result.value_us]
    assert result.peak_bytes == min(baseline.peak_bytes for baseline in alike) == (3,)


def test_any_seed_from_zero_on_is_accepted() -> None:
    problem = table_problem(3, 5, 0.7)
    result = solve(problem, counted(0.1, seed=9_999_999_999_999))
    assert result.schedule is not None
    with pytest.raises(SynthError, match="the seed is -1; give 0 or more"):
        SolveOptions(seed=-1)


def test_the_time_limit_is_kept_on_a_problem_of_many_ops() -> None:
    # Its first list scheduling alone would take minutes if nothing looked at the clock.
    result = solve(table_problem(8, 600, 0.75), SolveOptions(time_limit_s=2, workers=2))
    assert result.schedule is not None
    assert result.wall_s < 40


def test_a_stop_at_the_start_of_a_problem_of_many_ops_leaves_families_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(published, "PUBLISHED", replace(PUBLISHED, grace_s=0))
    stop = threading.Event()
    stop.set()
    result = solve(table_problem(8, 600, 1), watch=SolveWatch(stop=stop))
    assert [baseline.name for baseline in result.baselines] == ["1f1b"]
    assert result.schedule is not None
    assert result.stopped_by == StoppedBy.INTERRUPT


def test_more_ops_than_can_be_handled_are_refused() -> None:
    with pytest.raises(SynthError, match="more than the 1,500,000 that the solver handles"):
        table_problem(8, 100_000, 1)


def random_costs(draw: random.Random, num_stages: int) -> Costs:
    """Stages of every kind: values held until F, B or W, B that frees or adds, workspace."""
    stages: list[StageCosts] = []
    for s in range(num_stages):
        output = draw.randint(0, 6) if s < num_stages - 1 else 0
        gradient = stages[-1].output_bytes if s else 0
        saved, saved_w = draw.randint(0, 9), draw.randint(0, 9)
        work = [draw.randint(0, 4) for _ in range(5)]
        stages.append(
            StageCosts(
                duration_us=dict.fromkeys(MEASURED, 1),
                static_bytes=draw.randint(0, 20),
                output_bytes=output,
                saved_bytes=saved,
                saved_w_bytes=saved_w,
                rise_bytes={
                    OpKind.F: saved + output + work[0],
                    OpKind.B: max(0, saved_w - saved) + gradient + work[1],
                    OpKind.W: work[2],
                    OpKind.BW: gradient + work[3],
                    OpKind.STEP: work[4],
                },
                input_until=draw.choice([OpKind.F, OpKind.B, OpKind.W]),
                output_until=draw.choice([OpKind.F, OpKind.B, OpKind.W]),
                gradient_until=draw.choice([OpKind.B, OpKind.W]),
            )
        )
    return Costs(stages=tuple(stages))


def test_the_closed_form_need_is_what_the_serial_schedule_really_peaks_at() -> None:
    draw = random.Random(5)
    for _ in range(300):
        problem = Problem.linear(random_costs(draw, 3), num_micro_batches=2, cap_bytes=0)
        lowered, _ = verify(serial_schedule(problem), problem.costs)
        shortage = find_shortage(problem)
        assert shortage is not None
        peak = max(peak_bytes(lowered))
        assert shortage.smallest_cap_bytes <= peak  # never claims too much
        instance, stages = relaxed_memory(problem), problem.costs.stages
        received = [0, *(stage.output_bytes for stage in stages)]
        alone = [one_micro_batch_bytes(problem, instance, rank) for rank in range(3)]
        if all(2 * size <= least for size, least in zip(received, alone, strict=False)):
            # Else a fused B's gradient may still be leaving while the next activation comes.
            assert shortage.smallest_cap_bytes == peak


def test_a_hint_out_of_micro_batch_order_is_refused_for_the_period() -> None:
    # Rank 1 begins with micro-batch 1, starts later and so looks shorter; bounds do not cover it.
    costs = uniform_costs(2, forward_us=3, backward_input_us=3, backward_weight_us=2)
    orders = ("F0.0 F0.1 BW0.1 BW0.0", "F1.1 BW1.1 F1.0 BW1.0")
    hint = Schedule.linear("backwards", 2, [map(Op.parse, order.split()) for order in orders])
    problem = Problem.linear(costs, 2, objective=Objective.PERIOD)
    with pytest.raises(SynthError, match="rank 0 takes BW of micro-batch 1 before 0"):
        solve(problem, SolveOptions(hint=hint))
