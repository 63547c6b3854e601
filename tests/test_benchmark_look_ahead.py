"""The benchmark of bounded look-ahead: its saved rows, and the table of one or two ways."""

import json
from argparse import Namespace
from pathlib import Path

import pytest

from benchmarks import look_ahead, tables
from benchmarks.emulation import plan_of
from benchmarks.look_ahead import Row, table

ASKED = ["--ranks", "4", "--micro-batches", "4", "--families", "1f1b", "--repeats", "1"]


def test_without_disturbance_the_plan_s_order_takes_its_makespan(tmp_path: Path) -> None:
    saved = tmp_path / "ahead.json"
    asked = [*ASKED, "--disturbances", "none", "slow link", "--modes", "0:1", "1:1.25"]
    assert look_ahead.main([*asked, "--json", str(saved)]) == 0
    rows = [Row(**row) for row in json.loads(saved.read_text())["rows"]]
    numbers = Namespace(micro_batches=4, op_ms=20.0, boundary_bytes=262_144)
    makespan_ms = plan_of("1f1b", 4, numbers).claim.makespan_us / 1000
    assert [row.time_ms for row in rows[:2]] == [pytest.approx(makespan_ms)] * 2
    assert rows[3].time_ms > makespan_ms  # over the slow link

    page = tables.filled("<!-- results: ahead -->\n<!-- /results -->\n", tmp_path)
    assert "| plan's order, ms | N = 0, 1 × peak | N = 1, 1.25 × peak |" in page
    assert f"| 1f1b | none | {makespan_ms:.0f} | 1.000 (0) |" in page
    assert "4 ranks, 4 micro-batches, ops of 20 ms, 1 iterations." in page


def test_emulated_iterations_stand_beside_simulated_ones() -> None:
    mode = "N = 1, 1.25 × peak"
    rows = [
        Row("1f1b", "none", "simulated", None, 1000.0, 0),
        Row("1f1b", "none", "simulated", mode, 900.0, 7),
        Row("1f1b", "none", "emulated", None, 1100.0, 0),
        Row("1f1b", "none", "emulated", mode, 1045.0, 8),
    ]
    head, _, line = table({"rows": [row._asdict() for row in rows]}).splitlines()
    assert "| plan's order, simulated, ms | plan's order, emulated, ms |" in head
    assert line == "| 1f1b | none | 1000 | 1100 | 0.900 (7) | 0.950 (8) |"
