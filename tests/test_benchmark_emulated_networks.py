"""The benchmark of emulated devices on two networks: its plans, and the table of its results."""

import json
from pathlib import Path

import pytest

from benchmarks import tables
from benchmarks.emulated_networks import FORMAT, Row, plan_of
from benchmarks.results_file import Run, save
from synth.schedule.files.scaled import moved_bytes, scaled


@pytest.mark.parametrize("system", ["1f1b", "weipipe", "zero3:1", "pipedream", "2bw"])
def test_a_slower_network_takes_longer_and_sizes_do_not_change_times(system: str) -> None:
    fast, slow = (plan_of(system, 4, name, 2) for name in ("NVLink", "10 GbE"))
    assert fast.claim.makespan_us < slow.claim.makespan_us
    small = scaled(slow, sizes=1e-3)
    assert small.claim.makespan_us == pytest.approx(slow.claim.makespan_us, rel=1e-3)
    moved, before = (moved_bytes(plan.check()[0]) for plan in (small, slow))
    assert moved == pytest.approx(before / 1000, rel=1e-2)


def test_the_table_compares_with_1f1b_on_the_same_network(tmp_path: Path) -> None:
    rows = [
        Row(8, "NVLink", "1f1b", 1_000_000, 1_020_000, 1_010_000, 1_040_000, True, 0.2),
        Row(8, "NVLink", "weipipe", 900_000, 945_000, 940_000, 950_000, True, 0.3),
        Row(8, "10 GbE", "weipipe", 900_000, 945_000, 940_000, 950_000, False, 0.3),
    ]
    path = tmp_path / "networks.json"
    request = Run("emulated-networks", "about.", 1, 0, None)
    save(path, FORMAT, request, (row._asdict() for row in rows))
    torch = json.loads(path.read_text())["torch"]

    page = tables.filled("<!-- results: networks -->\n<!-- /results -->\n", tmp_path)

    assert "| 8 | NVLink | `1f1b` | 1000 | 1020 | 1010–1040 | 2.0 | 1.00 | 1.00 | yes |" in page
    assert "| 8 | NVLink | `weipipe` | 900 | 945 | 940–950 | 5.0 | 0.90 | 0.93 | yes |" in page
    assert "| 8 | 10 GbE | `weipipe` | 900 | 945 | 940–950 | 5.0 |  |  | no |" in page
    assert f"torch {torch}." in page and "worker" not in page and "OR-Tools" not in page
