"""The executor's benchmark: both runtimes are given the same, and its judgement can fail."""

from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import tables
from benchmarks.executor import __main__ as benchmark
from benchmarks.executor import weights, weights_table
from benchmarks.executor.case import SIZES, Case
from benchmarks.executor.processes import run_cases
from benchmarks.executor.report import summarize, table
from benchmarks.executor.sample import Sample
from synth.op_kinds import OpKind

CASE = Case("1f1b", 1, 4, "linear", checkpoint=False, split=False, size=SIZES["tiny"])


def kinds(case: Case) -> set[OpKind]:
    return {op.kind for program in case.make_schedule().programs for op in program}


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1", "solved"])
def test_split_decides_which_backward_every_micro_batch_has(schedule: str) -> None:
    case = replace(CASE, schedule=schedule, num_ranks=2)
    assert kinds(replace(case, split=True)) == {OpKind.F, OpKind.B, OpKind.W}
    assert kinds(replace(case, split=False)) == {OpKind.F, OpKind.BW}


def test_a_schedule_that_has_both_is_left_as_it_is() -> None:
    case = replace(CASE, schedule="dualpipe-v", split=None)
    assert kinds(case) == {OpKind.F, OpKind.B, OpKind.W, OpKind.BW}


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


def samples(wall_s: float, cpu_s: float, peak_bytes: int) -> Sample:
    return Sample([wall_s], [cpu_s], peak_bytes)


def test_a_saved_run_has_a_line_for_each_order_with_all_numbers_of_micro_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured(listed: list[tuple[Case, list[str]]], *_: Any, **__: Any) -> Iterator[Any]:
        for case, _names in listed:
            m = case.num_micro_batches
            ours, theirs = samples(1.0, 0.5 + m / 10, 10), samples(2.0, 1.5 + m / 10, 10 * m)
            yield [{"ours": ours, "pytorch": theirs, "plain": samples(0.5, 0.5, 5)}]

    monkeypatch.setattr(benchmark, "run_cases", measured)
    asked = ["--ranks", "1", "--micro-batches", "8", "4", "--stages", "mlp", "--no-native"]
    asked += ["--schedules", "1f1b", "--checkpoint", "no", "--split", "no"]

    assert benchmark.main([*asked, "--json", str(tmp_path / "executor.json")]) == 0

    page = tables.filled("<!-- results: executor -->\n<!-- /results -->\n", tmp_path)
    # Step 1 / 2; processor time (0.5 + m / 10) / (1.5 + m / 10), and without the plain 0.5.
    ratios = "0.50 0.50 | 0.47 0.57 | 0.29 0.44 | 0.25 0.12"
    # Of 8 F and 8 BW with 8 micro-batches; of 4 and 4 with the 4 that are shown.
    assert f"| 1 | mlp | no | BW | 1f1b | runtime | {ratios} | 50000 / 175000 |" in page
    assert "4 and 8 micro-batches of 2 × 4 × 16 float32" in page and ", torch " in page


def test_a_ratio_to_no_processor_time_is_left_out() -> None:
    same = samples(1.0, 1.0, 1)
    [row] = summarize(CASE, [{"ours": same, "pytorch": same, "plain": samples(1.0, 2.0, 1)}])
    assert row.own is None
    assert "| 1.00 | 1.00 | – | 1.00 |" in table({"rows": [asdict(row)]})


def test_a_saved_run_of_passing_weights_is_of_the_slowest_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = weights.Figures([0.1, 0.1, 0.1], [0.01, 0.01, 0.01], [2_000_000] * 3, 3_000_000)
    slow = weights.Figures([0.2, 0.4, 0.3], [0.02, 0.02, 0.02], [1_000_000] * 3, 4_000_000)
    found = [dict.fromkeys(weights.SYSTEMS, figures) for figures in (fast, slow)]
    monkeypatch.setattr(weights, "run_on_ranks", lambda *_: found)
    path = tmp_path / "weights.json"

    assert weights.main(["--sizes", "long", "--ranks", "2", "--json", str(path)]) == 0

    page = tables.filled("<!-- results: weights -->\n<!-- /results -->\n", tmp_path)
    assert "| 4096 | 64 | 2 | ZeRO-3 | 300 | 30 | 2.0 | 4.0 |" in page
    assert page.count("| 4096 | 64 | 2 |") == len(weights.SYSTEMS)
    assert weights_table.FORMAT in path.read_text()
