"""Families whose F and BW run at once: the closed forms of their papers."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise, product

import pytest

from synth.costs.costs import Costs, uniform_costs
from synth.errors import SynthError
from synth.families import family_placement, generate
from synth.op_kinds import OpKind
from synth.schedule.model import Schedule
from synth.schedule.ops import Op
from synth.schedule.rank_memory import peak_bytes
from synth.schedule.simulate import Timeline
from synth.schedule.verify import verify

F, BW = OpKind.F, OpKind.BW
OVERLAPPING = ("dualpipe:overlap", "dualpipe-v:overlap", "interleaved:2,overlap")

# F, input gradient, weight gradient, and what F and BW at once save.
TIMES = [
    (10, 10, 10, 4),
    (10, 10, 10, 10),
    (10, 12, 9, 1),
    (10, 12, 9, 6),
    (10, 14, 6, 8),
    (20, 22, 18, 15),
    (10, 20, 5, 9),
]


def costs_of(num_stages: int, times: tuple[int, int, int, int], activation_bytes: int = 0) -> Costs:
    forward_us, input_us, weight_us, hidden_us = times
    costs = uniform_costs(
        num_stages,
        forward_us=forward_us,
        backward_input_us=input_us,
        backward_weight_us=weight_us,
        saved_bytes=activation_bytes,
        saved_w_bytes=activation_bytes,
    )
    return costs.replace(stages=tuple(each.replace(hidden_us=hidden_us) for each in costs.stages))


def made(name: str, num_ranks: int, m: int, times: tuple[int, int, int, int]) -> Schedule:
    costs = costs_of(family_placement(name, num_ranks).num_stages, times)
    return generate(name, num_ranks, m, costs=costs)


def run(schedule: Schedule, times: tuple[int, int, int, int]) -> Timeline:
    return verify(schedule, costs_of(schedule.placement.num_stages, times))[1]


def bubble_us(line: Timeline) -> int:
    """The idle time of the ranks on which most F and BW run at once."""
    return line.makespan_us - min(line.work_us)


def before_backwards(schedule: Schedule) -> Iterator[Op]:
    for program in schedule.programs:
        for op, after in pairwise(program):
            if op.kind == F and after.kind == BW:
                yield op


@pytest.mark.parametrize("name", ["dualpipe:overlap", "dualpipe-v:overlap"])
def test_the_bubble_is_the_one_of_the_papers_table(name: str) -> None:
    """(PP/2 − 1) (F&B + B − 3W) of DeepSeek-V3 (arXiv 2412.19437, table 2), B the whole backward.

    It holds where W takes no longer than B of the input. DualPipeV has it with half as many ranks.
    """
    half = 2 if name.startswith("dualpipe:") else 1
    num_cases = 0
    for pp, more, times in product((2, 4, 6, 8, 10), (0, 2, 6), TIMES):
        forward_us, input_us, weight_us, hidden_us = times
        backward_us = input_us + weight_us
        pair_us = forward_us + backward_us - hidden_us
        printed_us = (pp // 2 - 1) * (pair_us + backward_us - 3 * weight_us)
        # Two streams of as many micro-batches, or one.
        m = 2 * pp + more if half == 2 else pp + more
        schedule = made(name, pp * half // 2, m, times)
        whole = replace(schedule, overlapped=frozenset(before_backwards(schedule)))
        line = run(whole, times)
        assert bubble_us(line) == printed_us, (pp, m, times)
        # The released program keeps the first pair apart where the streams meet, if that is faster.
        assert run(schedule, times).makespan_us <= line.makespan_us
        num_cases += 1
    assert num_cases == 105


def test_interleaved_keeps_its_bubble_and_gains_what_its_pairs_hide() -> None:
    """The idle time stays (D − 1) (F + BW) where all F but the warm-up's are paired."""
    for d, rounds, more, times in product(range(2, 7), (2, 3), (0, 1, 5, 8), TIMES):
        name, m = f"interleaved:{rounds},overlap", d + more
        forward_us, input_us, weight_us, hidden_us = times
        schedule = made(name, d, m, times)
        line = run(schedule, times)
        assert bubble_us(line) == (d - 1) * (forward_us + input_us + weight_us), (d, m, times)
        of_last = [op for op in schedule.overlapped if op in schedule.programs[-1]]
        work_us = rounds * m * (forward_us + input_us + weight_us)
        assert min(line.work_us) == work_us - hidden_us * len(of_last)


@pytest.mark.parametrize("name", OVERLAPPING)
def test_pairs_are_never_slower_and_strictly_faster_with_many_micro_batches(name: str) -> None:
    plain = name.removesuffix(":overlap").removesuffix(",overlap")
    for d, times in product((2, 4), TIMES):
        fast, slow = (run(made(each, d, 8 * d, times), times) for each in (name, plain))
        assert fast.makespan_us < slow.makespan_us, (d, times)


@pytest.mark.parametrize("name", OVERLAPPING)
def test_without_a_time_at_once_it_is_the_family_itself(name: str) -> None:
    plain = generate(name.removesuffix(":overlap").removesuffix(",overlap"), 4, 8)
    schedule = generate(name, 4, 8)
    assert schedule.name == name
    assert (schedule.programs, schedule.overlapped) == (plain.programs, frozenset())


def test_only_stages_that_save_time_at_once_are_paired() -> None:
    costs = costs_of(8, (10, 10, 10, 4))
    stages = [costs.stages[0].replace(hidden_us=0), *costs.stages[1:]]
    schedule = generate("dualpipe-v:overlap", 4, 8, costs=costs.replace(stages=tuple(stages)))
    paired = {op.stage for op in schedule.overlapped}
    behind = {
        after.stage
        for program in schedule.programs
        for op, after in pairwise(program)
        if op in schedule.overlapped
    }
    assert 0 not in paired and 7 not in paired  # rank 0 has stages 0 and 7
    assert paired == behind == set(range(1, 7))


def test_a_pair_holds_the_activations_of_both() -> None:
    """One activation more than one after the other, where F comes before BW frees its own."""
    costs = costs_of(8, (10, 10, 10, 4), activation_bytes=100)
    schedule = generate("interleaved:2,overlap", 4, 8, costs=costs)
    at_once, apart = (
        peak_bytes(verify(each, costs)[0]) for each in (schedule, schedule.one_after_the_other)
    )
    assert at_once == apart  # F's rise is what it keeps; BW needs none
    plain = peak_bytes(verify(generate("interleaved:2", 4, 8), costs)[0])
    assert [more - less for more, less in zip(at_once, plain, strict=True)] == [100] * 4


def test_the_groups_of_interleaved_must_be_as_large_as_there_are_ranks() -> None:
    times = (10, 10, 10, 4)
    assert not made("interleaved:2,overlap", 4, 3, times).overlapped
    assert not made("interleaved:2,overlap,group=4", 4, 6, times).overlapped
    run(made("interleaved:2,overlap", 4, 3, times), times)


def test_r_cannot_stand_between_what_runs_at_once() -> None:
    with pytest.raises(SynthError, match=r"either F and BW at once \(overlap\) or R between"):
        made("interleaved:2,overlap,recompute", 4, 8, (10, 10, 10, 4))
