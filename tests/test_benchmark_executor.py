"""The executor's benchmark: both runtimes are given the same, and its judgement can fail."""

from dataclasses import replace

import pytest

from benchmarks.executor.case import SIZES, Case
from benchmarks.executor.measure import Sample
from benchmarks.executor.processes import run_cases
from benchmarks.executor.report import summarize
from synth.op_kinds import OpKind

CASE = Case("1f1b", 1, 4, "linear", checkpoint=False, split=False, size=SIZES["tiny"])


def kinds(case: Case) -> set[OpKind]:
    return {op.kind for program in case.make_schedule().programs for op in program}


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1", "solved"])
def test_split_decides_which_backward_every_micro_batch_has(schedule: str) -> None:
    case = replace(CASE, schedule=schedule, num_ranks=2)
    assert kinds(replace(case, split=True)) == {OpKind.F, OpKind.B, OpKind.W}
    assert kinds(replace(case, split=False)) == {OpKind.F, OpKind.BW}


def test_ratios_are_of_the_slowest_rank_and_of_all_processor_time() -> None:
    ours = [Sample([1.0], [1.0], 10), Sample([3.0], [1.0], 30)]
    theirs = [Sample([4.0], [3.0], 40), Sample([2.0], [1.0], 60)]
    plain = Sample([0.5], [0.5], 5)
    both = zip(ours, theirs, strict=True)
    ranks = [{"ours": a, "pytorch": b, "plain": plain} for a, b in both]
    [row] = summarize(CASE, ranks)
    assert (row.step, row.cpu, row.peak) == (0.75, 0.5, 0.5)
    assert row.own == pytest.approx((2 - 1) / (4 - 1))  # beyond plain autograd's second


def test_runtimes_that_compute_different_things_are_not_compared() -> None:
    same = Sample([1.0], [1.0], 1)
    ranks = [{"ours": same, "pytorch": Sample([1.0], [1.0], 1, 0.1), "plain": same}]
    with pytest.raises(AssertionError, match="differs from ours"):
        summarize(CASE, ranks)


def test_both_runtimes_give_the_same_losses_and_gradients() -> None:
    case = replace(CASE, split=True, stages="mlp")
    [ranks] = run_cases([(case, ["ours", "pytorch", "plain"])], 1, rounds=1)
    [row] = summarize(case, ranks)
    assert ranks[0]["pytorch"].difference < 1e-5
    assert 0 < row.peak_bytes[0] <= row.peak_bytes[1]
