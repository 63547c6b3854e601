"""The order of published layouts: a row for each source, and the sums."""

import pytest

from benchmarks import layout_order


@pytest.mark.slow
def test_it_counts_pairs_by_source(capsys: pytest.CaptureFixture[str]) -> None:
    assert layout_order.main() == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines[2:-2]]
    pairs, ordered = (sum(int(row[at]) for row in rows) for at in (3, 4))
    assert lines[-2].startswith(f"{ordered} of {pairs} pairs in order, ")
    assert pairs > ordered > 0.7 * pairs
    assert "regret" in lines[-1]
