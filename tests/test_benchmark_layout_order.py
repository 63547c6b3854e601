"""The order of published layouts: a row for each source, and the sums."""

import re

import pytest

from benchmarks import layout_order


@pytest.mark.slow
def test_it_counts_pairs_by_source(capsys: pytest.CaptureFixture[str]) -> None:
    assert layout_order.main() == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines[2:-2]]
    pairs, ordered = (sum(int(row[at]) for row in rows) for at in (3, 4))
    assert lines[-1].startswith(f"{ordered} of {pairs} pairs in order, ")
    assert pairs > ordered > 0.7 * pairs
    assert "regret" in lines[-1]


@pytest.mark.slow
def test_nine_of_ten_pairs_of_published_families_are_in_order(
    capsys: pytest.CaptureFixture[str],
) -> None:
    layout_order.main()
    line = capsys.readouterr().out.splitlines()[-2]
    ordered, pairs, mean = re.findall(r"[\d.]+", line)[0:2] + re.findall(r"mean ([\d.]+)%", line)
    assert int(ordered) >= 0.9 * int(pairs)
    assert float(mean) <= 3.0
