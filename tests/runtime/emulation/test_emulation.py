"""Emulated devices: eight ranks on any machine replay schedules in order, time and memory."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from synth.costs.costs import Costs, uniform_costs
from synth.errors import RunFailure
from synth.families import family_placement, generate
from synth.op_kinds import OpKind
from synth.profile.links import Link, Links
from synth.schedule.lowering.lower import lower
from synth.schedule.lowering.programs import Transfer
from synth.schedule.measured.execution_trace import ExecutionTrace, planned_spans
from synth.schedule.measured.rank_log import join_logs
from synth.schedule.model import Placement, Schedule
from synth.schedule.ops import Op
from synth.schedule.rank_memory import peak_bytes
from synth.schedule.simulate import simulate
from synth.schedule.verify import verify
from tests.runtime.gloo_pool import GlooPool

RANKS, MICRO_BATCHES = 8, 8
LINK = Link(latency_us=400.0, bandwidth_bytes_per_s=50e6)


@pytest.fixture(scope="module")
def many() -> Iterator[Any]:
    """Processes for eight ranks."""
    made = GlooPool(RANKS)
    yield made
    made.close()


def costs_of(num_stages: int, link: Link = LINK, host: Link | None = None) -> Costs:
    return uniform_costs(
        num_stages,
        forward_us=3000,
        backward_input_us=3500,
        backward_weight_us=2500,
        saved_bytes=100_000,
        saved_w_bytes=60_000,
        output_bytes=8_000,
        gradient_bytes=16_000,
        links=Links(default=link, host=host),
    )


def solved() -> Schedule:
    """A schedule that the solver finds in three quarters of 1F1B's memory.

    Every process imports this file; only this one needs the solver.
    """
    from synth.objective import Objective
    from synth.solver.options import SolveOptions
    from synth.solver.problem import Problem
    from synth.solver.solver import solve

    costs = costs_of(RANKS)
    caps = [3 * peak // 4 for peak in peak_bytes(lower(generate("1f1b", RANKS, 8), costs))]
    placement = Placement.linear(RANKS)
    problem = Problem(costs, placement, MICRO_BATCHES, (max(caps),) * RANKS, Objective.MAKESPAN)
    result = solve(problem, SolveOptions(time_limit_s=0.1, workers=1, deterministic=True))
    assert result.schedule is not None
    return result.schedule


def emulate(
    rank: int, size: int, cases: list[tuple[Schedule, Costs]], steps: int, late: bool = False
) -> list[Any]:
    """Run schedules one after another; return each rank's result and held values."""
    from synth.run_options.emulation_options import EmulationOptions
    from synth.runtime.emulation.emulated_rank import RankEmulation
    from synth.runtime.world import World

    found = []
    for schedule, costs in cases:
        world = World(rank, size, torch.device("cpu"), "gloo", "here", 2)
        options = EmulationOptions(steps=steps, post_validation=late)
        emulation = RankEmulation(lower(schedule, costs), options, world)
        found.append((emulation.run(), emulation.held_values))
    return found


def replayed(pool: Any, cases: list[tuple[Schedule, Costs]], steps: int = 3) -> list[Any]:
    """For each case: the measurements of its ranks, and the execution trace of its last step."""
    size = cases[0][0].num_ranks
    by_rank = pool.run(emulate, size, cases, steps)
    found = []
    for index in range(len(cases)):
        results = [rank[index][0] for rank in by_rank]
        assert [rank[index][1] for rank in by_rank] == [0] * size
        found.append((results, join_logs([r.traced[-1].log for r in results])))
    return found


def assert_replayed(
    schedule: Schedule, costs: Costs, results: Any, execution: ExecutionTrace
) -> None:
    """In order, no op before its time, in the memory planned, and every transfer was seen."""
    lowered, _ = verify(schedule, costs)
    planned = simulate(lower(schedule, costs, synchronous_step=True))
    assert [[span.op for span in rank] for rank in execution.ops] == [list(r) for r in lowered.ops]
    assert {span.communication for span in execution.communications} == {
        *lowered.transfers,
        *lowered.collectives,
    }
    for found, expected in zip(execution.ops, planned_spans(planned), strict=True):
        for mine, due in zip(found, expected, strict=True):
            assert mine.end_us >= due.end_us - 1, mine.op
    assert tuple(r.peak_bytes for r in results) == peak_bytes(lowered)


def test_eight_ranks_replay_published_and_solved_schedules(many: Any) -> None:
    schedules = [
        *(generate(name, RANKS, MICRO_BATCHES) for name in ("1f1b", "zb-v")),
        *(generate(name, RANKS, MICRO_BATCHES) for name in ("chimera", "bitpipe")),
        solved(),
    ]
    cases = [(s, costs_of(s.placement.num_stages)) for s in schedules]
    for (schedule, costs), (results, execution) in zip(cases, replayed(many, cases), strict=True):
        assert_replayed(schedule, costs, results, execution)


def test_memory_that_senders_hold_anyway_counts_once(many: Any) -> None:
    """Of outputs 3 of 8 kB are made to be sent, and gradients of 6 kB have 5 kB of memory."""
    cases = []
    for name in ("1f1b", "zb-v", "chimera"):
        schedule = generate(name, RANKS, MICRO_BATCHES)
        costs = costs_of(schedule.placement.num_stages)
        sizes = {
            "output_gradient_bytes": 6_000,
            "sent_bytes": 3_000,
            "shared_gradient_bytes": 1_000,
        }
        stages = tuple(stage.replace(**sizes) for stage in costs.stages)
        cases.append((schedule, costs.replace(stages=stages)))
    for (schedule, costs), (results, execution) in zip(cases, replayed(many, cases), strict=True):
        assert_replayed(schedule, costs, results, execution)


def test_f_and_bw_at_once_take_the_time_of_the_pair(many: Any) -> None:
    cases = []
    for name in ("dualpipe:overlap", "interleaved:2,overlap"):
        costs = costs_of(family_placement(name, RANKS).num_stages)
        stages = tuple(stage.replace(hidden_us=2500) for stage in costs.stages)
        costs = costs.replace(stages=stages)
        cases.append((generate(name, RANKS, 2 * RANKS, costs=costs), costs))
    for (schedule, costs), (results, execution) in zip(cases, replayed(many, cases), strict=True):
        assert_replayed(schedule, costs, results, execution)
        paired = [span for rank in execution.ops for span in rank if span.op in schedule.overlapped]
        assert len(paired) == len(schedule.overlapped) > RANKS


def test_an_op_that_runs_at_once_with_another_takes_its_share_of_the_pair() -> None:
    from synth.runtime.emulation.emulated_clock import EmulatedClock
    from synth.runtime.emulation.emulated_stage import EmulatedStage
    from synth.runtime.execution.base.stage_protocol import ForwardInput

    class Clock(EmulatedClock):
        def run(self, duration_us: int) -> None:
            taken.append(duration_us)

    taken: list[int] = []
    costs = costs_of(2).stages[0]
    times = {(OpKind.F, 1): 1700, (OpKind.BW, 0): 3300}
    stage = EmulatedStage(costs, None, Clock(), is_last=False, at_once_us=times)
    for microbatch in (0, 1):
        stage.forward(microbatch, ForwardInput(()))
    for microbatch in (0, 1):
        stage.backward(microbatch, ())
    assert taken == [3000, 1700, 3300, 6000]


def test_moves_to_the_host_and_to_other_ranks_are_replayed(many: Any) -> None:
    # The 100 kB that a stage saves take 2 ms to the host, and 2.4 ms to another rank.
    host = Link(latency_us=1000.0, bandwidth_bytes_per_s=100e6)
    cases = []
    for name in ("bpipe", "pipeoffload:1,full", "pipeoffload:2"):
        costs = costs_of(family_placement(name, RANKS).num_stages, host=host)
        cases.append((generate(name, RANKS, MICRO_BATCHES, costs=costs), costs))
    for (schedule, costs), (results, execution) in zip(cases, replayed(many, cases), strict=True):
        moved = {
            span.communication.value.kind
            for span in execution.communications
            if isinstance(span.communication, Transfer)
        }
        assert moved >= {"out", "back"}
        assert_replayed(schedule, costs, results, execution)


def test_what_comes_back_from_a_slow_host_is_waited_for(many: Any) -> None:
    # F ends at 3 ms; out takes 20 ms, and back as long.
    host = Link(latency_us=20_000.0)
    made = Schedule.linear("by hand", 1, [map(Op.parse, ["F0.0", "O0.0", "L0.0", "BW0.0"])])
    ((_, execution),) = replayed(many, [(made, costs_of(1, host=host))])
    backward = next(span for span in execution.ops[0] if span.op.kind == "BW")
    assert backward.end_us >= 3_000 + 40_000 + 6_000 - 1


def test_transfers_are_held_back_to_the_pace_of_the_plans_links(many: Any) -> None:
    # 8000 bytes over 400 kB/s are 20 ms, and loopback takes far less.
    slow = Link(latency_us=0.0, bandwidth_bytes_per_s=400e3)
    schedule, costs = generate("1f1b", 2, 2), costs_of(2, slow)
    ((_, execution),) = replayed(many, [(schedule, costs)])
    assert execution.ops[1][0].start_us >= 3_000 + 20_000 - 1


def test_a_link_serves_one_transfer_at_a_time(many: Any) -> None:
    # GPipe's rank 0 makes an activation every 3 ms; the link takes 10 ms for each.
    slow = Link(latency_us=10_000.0)
    schedule, costs = generate("gpipe", 2, 4), costs_of(2, slow)
    ((_, execution),) = replayed(many, [(schedule, costs)])
    read = [span for span in execution.ops[1] if span.op.kind == "F"]
    assert read[3].start_us >= 3_000 + 4 * 10_000 - 1


def test_memory_that_the_system_refuses_is_explained() -> None:
    from synth.runtime.emulation.emulated_clock import EmulatedClock
    from synth.runtime.emulation.emulated_stage import EmulatedStage
    from synth.runtime.execution.base.stage_protocol import ForwardInput

    huge = costs_of(2).stages[0].replace(saved_bytes=2**49)
    stage = EmulatedStage(huge, None, EmulatedClock(), is_last=False)
    with pytest.raises(RunFailure, match=r"could not get \d+ bytes .* give --sizes 0.01"):
        stage.forward(0, ForwardInput(()))


def test_ranks_that_do_not_wait_at_step_replay_the_same_ops_in_the_same_memory(many: Any) -> None:
    schedule, costs = generate("zb-h2", 4, 8), costs_of(4)
    by_rank = many.run(emulate, 4, [(schedule, costs)], 5, True)
    lowered, _ = verify(schedule, costs)
    for rank, [(result, held)] in enumerate(by_rank):
        assert result.late and held == 0
        assert result.peak_bytes == peak_bytes(lowered)[rank]
    execution = join_logs([result.traced[-1].log for [(result, _)] in by_rank])
    assert [[span.op for span in rank] for rank in execution.ops] == [list(r) for r in lowered.ops]


def look_ahead(rank: int, size: int, schedule: Schedule, costs: Costs, cap_bytes: int) -> Any:
    """Emulate under jitter and a slow link; return the rank's result and its held values."""
    from synth.run_options.emulation_options import Disturbance, EmulationOptions
    from synth.runtime.emulation.emulated_rank import RankEmulation
    from synth.runtime.world import World

    world = World(rank, size, torch.device("cpu"), "gloo", "here", 2)
    options = EmulationOptions(
        steps=4,
        look_ahead=3,
        caps_bytes=(cap_bytes,) * size,
        disturbance=Disturbance(jitter=0.2, slow_link=(0, 1), slow_link_factor=20.0),
    )
    emulation = RankEmulation(lower(schedule, costs), options, world)
    return emulation.run(), emulation.held_values


@pytest.mark.parametrize("family", ["1f1b", "zb-h1"])
def test_ranks_that_look_ahead_keep_the_memory_limit(many: Any, family: str) -> None:
    schedule, costs = generate(family, 4, MICRO_BATCHES), costs_of(4)
    cap_bytes = round(1.3 * max(peak_bytes(lower(schedule, costs))))

    found = many.run(look_ahead, 4, schedule, costs, cap_bytes)

    assert [held for _, held in found] == [0] * 4
    assert all(result.peak_bytes <= cap_bytes for result, _ in found)
    assert sum(sum(result.early_ops) for result, _ in found) > 0


def test_disturbed_times_are_the_same_at_both_ends_of_a_link() -> None:
    from synth.run_options.emulation_options import Disturbance
    from synth.runtime.emulation.pace import Pace

    disturbance = Disturbance(jitter=0.1, slow_link=(0, 1), slow_link_factor=5.0)
    sender, receiver = Pace(disturbance, 0), Pace(disturbance, 1)
    transfers = lower(generate("1f1b", 2, MICRO_BATCHES), costs_of(2)).transfers
    sent = [sender.transfer_us(each, sends=True) for each in transfers]
    received = [receiver.transfer_us(each, sends=False) for each in transfers]
    assert sent == received
    assert all(2.5 < us / each.duration_us < 7.5 for us, each in zip(sent, transfers, strict=True))
    assert len(set(sent)) > len(sent) // 2
