"""F and BW of two micro-batches at once: simulator, memory, verifier and file."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from synth.costs.costs import Costs, uniform_costs
from synth.op_kinds import OpKind
from synth.schedule.files.program_text import num_ops, parse_programs, program_text
from synth.schedule.lowering.lower import Action, lower
from synth.schedule.model import Schedule
from synth.schedule.ops import Op
from synth.schedule.rank_memory import memory_usage, peak_bytes
from synth.schedule.simulate import Timeline
from synth.schedule.verify import ScheduleError, verify
from tests.synth import naive, plain

F, B, W, BW = OpKind.F, OpKind.B, OpKind.W, OpKind.BW
COSTS = uniform_costs(1, forward_us=1, backward_input_us=1, backward_weight_us=1)


class NaivePairs(naive.Naive):
    """The same reading of a schedule in which F and BW that run at once are one op."""

    def _with_steps(self, rank: int) -> list[Any]:
        ops = iter(super()._with_steps(rank))
        return [(op, next(ops)) if op in self.schedule.overlapped else (op,) for op in ops]

    def parts(self, op: Any) -> Sequence[Op]:
        return tuple(op)

    def inputs(self, op: Any) -> list[naive.Named]:
        return [value for each in op for value in super(NaivePairs, self).inputs(each)]

    def outputs(self, op: Any) -> list[naive.Named]:
        return [value for each in op for value in super(NaivePairs, self).outputs(each)]

    def rise_bytes(self, op: Any) -> int:
        return sum(super(NaivePairs, self).rise_bytes(each) for each in op)

    def duration_us(self, op: Any) -> int:
        times = [super(NaivePairs, self).duration_us(each) for each in op]
        if len(times) == 1:
            return times[0]
        hidden_us = min(self.costs.stages[each.stage].hidden_us for each in op)
        return max(sum(times) - hidden_us, *times)


def with_hidden(costs: Costs, rng: random.Random) -> Costs:
    """Costs of which F and BW at once save a part of the shorter one, or nothing.

    As in every measured profile, the rise of F contains what it makes.
    """
    stages = []
    for stage in costs.stages:
        most = min(stage.duration_us[F], stage.duration_us[BW])
        rises = {**stage.rise_bytes}
        rises[F] += stage.saved_bytes + stage.output_bytes
        stages.append(stage.replace(hidden_us=rng.randint(0, most), rise_bytes=rises))
    return costs.replace(stages=tuple(stages))


def candidates(schedule: Schedule) -> Iterator[Op]:
    """The F's with a BW of another micro-batch behind them."""
    for program in schedule.programs:
        for op, after in pairwise(program):
            if op.kind == F and after.kind == BW and op.microbatch != after.microbatch:
                yield op


def random_pairs(rng: random.Random) -> tuple[Schedule, Costs]:
    schedule = naive.random_schedule(rng)
    found = [op for op in candidates(schedule) if rng.random() < 0.7]
    costs = plain.random_costs(rng, schedule.placement.num_stages, schedule.num_ranks)
    return replace(schedule, overlapped=frozenset(found)), with_hidden(costs, rng)


def times_of(schedule: Schedule, costs: Costs) -> tuple[list[list[tuple[int, int]]], list[int]]:
    """The start and the end of each op, of each pair as one, and the peaks."""
    lowered, line = verify(schedule, costs)
    times = []
    for rank, program in enumerate(lowered.ops):
        nodes = iter(enumerate(program, lowered.first_node[rank]))
        row = []
        for node, op in nodes:
            last = next(nodes)[0] if op in schedule.overlapped else node
            row.append((line.start_us[node], line.end_us[last]))
        times.append(row)
    return times, list(peak_bytes(lowered))


def test_a_pair_is_one_op_for_an_independent_reading_too() -> None:
    rng = random.Random(7)
    num_run = num_pairs = num_blocked = 0
    for _ in range(600):
        schedule, costs = random_pairs(rng)
        reading = NaivePairs(schedule, costs)
        expected = reading.run()
        if expected is None:
            num_blocked += 1
            with pytest.raises(ScheduleError, match="deadlock"):
                verify(schedule, costs)
            continue
        times, peaks = times_of(schedule, costs)
        assert times == expected, schedule
        assert peaks == [reading.peak(rank) for rank in range(schedule.num_ranks)], schedule
        num_run += 1
        num_pairs += len(schedule.overlapped)
    assert num_run > 100 and num_pairs > 100 and num_blocked > 10


def test_what_f_makes_is_there_while_bw_runs_also_without_a_rise() -> None:
    # F makes 10 bytes, its rise is given as 0, and that of BW is 4: two micro-batches and BW.
    costs = uniform_costs(
        1, forward_us=5, backward_input_us=4, backward_weight_us=3, saved_bytes=10
    )
    stage = costs.stages[0]
    rises = {**stage.rise_bytes, F: 0, BW: 4}
    costs = costs.replace(stages=(stage.replace(rise_bytes=rises),))
    programs, overlapped = parse_programs(["F0.0 F0.1&BW0.0 BW0.1"])
    schedule = replace(Schedule.linear("one", 2, programs), overlapped=overlapped)
    lowered = lower(schedule, costs)
    assert peak_bytes(lowered) == (24,)
    assert memory_usage(lowered, 0).peak_bytes == 24


def test_the_memory_curve_has_the_peaks_of_the_arrays() -> None:
    rng = random.Random(8)
    for _ in range(200):
        schedule, costs = random_pairs(rng)
        lowered = lower(schedule, costs)
        curves = [memory_usage(lowered, rank) for rank in range(schedule.num_ranks)]
        assert tuple(curve.peak_bytes for curve in curves) == peak_bytes(lowered)
        assert all(curve.after[-1] == curve.static_bytes for curve in curves if curve.after)


def test_nothing_stands_between_the_ops_of_a_pair() -> None:
    rng = random.Random(9)
    for _ in range(50):
        schedule, costs = random_pairs(rng)
        for program in lower(schedule, costs).programs:
            for before, after in pairwise(program):
                if before.op in schedule.overlapped:
                    assert after.action == Action.COMPUTE and not before.frees


def two_ranks() -> tuple[Schedule, Costs]:
    """F(0, 1) and BW(0, 0) of rank 0 at once, which hides 4 of 5 µs."""
    text = ["F0.0 F0.1&BW0.0 BW0.1", "F1.0 BW1.0 F1.1 BW1.1"]
    programs, overlapped = parse_programs(text)
    schedule = replace(Schedule.linear("pair", 2, programs), overlapped=overlapped)
    costs = uniform_costs(2, forward_us=5, backward_input_us=4, backward_weight_us=3)
    return schedule, costs.replace(
        stages=tuple(stage.replace(hidden_us=4) for stage in costs.stages)
    )


def test_a_pair_waits_for_both_and_hands_on_both_at_its_end() -> None:
    # rank 0   F0.0           [F0.1 & BW0.0: 8]               BW0.1
    #          0    5         17            25                37   44
    # rank 1        F1.0 BW1.0             F1.1 BW1.1
    #               5    10  17            25   30   37
    schedule, costs = two_ranks()
    _, line = verify(schedule, costs)
    assert line.start_us[1] == 17 and line.end_us[2] == 25
    assert line.makespan_us == 44
    assert line.work_us == (5 + 8 + 7, 2 * (5 + 7))
    apart = verify(schedule.one_after_the_other, costs)[1]
    assert apart.makespan_us == 36  # F0.1 does not wait for BW1.0


def test_pairs_that_need_each_other_are_a_deadlock() -> None:
    text = ["F0.0 F0.1&BW0.0 BW0.1", "F1.0 F1.1 BW1.0 BW1.1"]
    programs, overlapped = parse_programs(text)
    schedule = replace(Schedule.linear("circle", 2, programs), overlapped=overlapped)
    with pytest.raises(ScheduleError, match=r"deadlock.*F0\.1"):
        verify(schedule, two_ranks()[1])


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("F0.0&BW0.0", "at once with BW0.0"),
        ("F0.0 F0.1&B0.0 W0.0 BW0.1", "at once with B0.0"),
        ("F0.0 BW0.0&F0.1 BW0.1", r"rank 0, op 1 \(BW0.0\): it is to run at once with F0.1"),
    ],
)
def test_only_f_and_bw_of_two_micro_batches_run_at_once(line: str, says: str) -> None:
    programs, overlapped = parse_programs([line])
    count = 1 + max(op.microbatch for op in programs[0])
    schedule = replace(Schedule.linear("one", count, programs), overlapped=overlapped)
    with pytest.raises(ScheduleError, match=says):
        verify(schedule, COSTS)


def test_an_op_that_no_rank_has_cannot_run_at_once() -> None:
    schedule = replace(two_ranks()[0], overlapped=frozenset({Op(F, 0, 7)}))
    with pytest.raises(ScheduleError, match=r"F0\.7 is to run at once .* no rank has it"):
        verify(schedule, two_ranks()[1])


def test_a_line_keeps_its_pairs() -> None:
    line = "F0.0 F0.1&BW1.0@1 BW0.1"
    programs, overlapped = parse_programs([line])
    assert program_text(programs[0], overlapped) == line
    assert overlapped == {Op(F, 0, 1)}
    assert num_ops(line) == 4
    repeated = parse_programs(["[F0.1&BW0.0]*3+1/0"])
    assert repeated.overlapped == {Op(F, 0, 1), Op(F, 0, 2), Op(F, 0, 3)}


@pytest.mark.parametrize("token", ["F0.0&", "&F0.0", "F0.0&&BW0.1", "F0.1 & BW0.0"])
def test_a_pair_without_two_ops_is_refused(token: str) -> None:
    with pytest.raises(ScheduleError, match="lacks an op beside '&'"):
        parse_programs([token])


def test_the_bound_of_an_order_holds_for_one_with_more_pairs() -> None:
    # F = 5, BW = 7, a pair 8: three micro-batches take 36 apart, and at least 36 - 3 * 4.
    costs = two_ranks()[1].replace(stages=two_ranks()[1].stages[:1])
    found = []
    for line in ("F0.0 F0.1 F0.2&BW0.0 BW0.1 BW0.2", "F0.0 F0.1&BW0.0 F0.2&BW0.1 BW0.2"):
        programs, overlapped = parse_programs([line])
        schedule = replace(Schedule.linear("one", 3, programs), overlapped=overlapped)
        found.append(verify(schedule, costs)[1])
    assert [line.makespan_us for line in found] == [32, 28]
    assert [line.least_us for line in found] == [24, 24]


def test_no_pairs_of_the_same_ops_are_faster_than_the_bound() -> None:
    rng = random.Random(10)
    num_compared = 0
    for _ in range(300):
        schedule, costs = random_pairs(rng)
        every = [*candidates(schedule)]
        if not schedule.overlapped:
            continue
        bounds, times = set(), []
        for _ in range(4):
            chosen = frozenset(op for op in every if rng.random() < 0.5) or schedule.overlapped
            line = timeline_of(replace(schedule, overlapped=chosen), costs)
            if line is not None:
                bounds.add(line.least_us)
                times.append(line.makespan_us)
        assert len(bounds) <= 1  # it depends on the ops alone
        assert all(bounds.issubset(range(us + 1)) for us in times)
        num_compared += len(times)
    assert num_compared > 100


def timeline_of(schedule: Schedule, costs: Costs) -> Timeline | None:
    try:
        return verify(schedule, costs)[1]
    except ScheduleError:
        return None
