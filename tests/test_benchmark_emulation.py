"""The benchmark of emulated devices: its saved rows and their table."""

from pathlib import Path

import pytest

from benchmarks import emulation, tables
from benchmarks.emulation import Row


def test_the_excess_is_over_the_simulated_iteration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts_us = (1_000.0, 2_000.0, 30_000.0, 4_000.0, 5_000.0, 6_000.0, -8_000.0)
    row = Row(8, "1f1b", 1_000_000.0, 1_040_000.0, *parts_us, peaks_as_planned=False, load=0.1)
    monkeypatch.setattr(emulation, "run", lambda *_: row)
    saved = tmp_path / "emulation.json"

    asked = ["--ranks", "8", "--families", "1f1b", "--steps", "10", "--json", str(saved)]
    assert emulation.main(asked) == 0

    page = tables.filled("<!-- results: emulation -->\n<!-- /results -->\n", tmp_path)
    assert "| 8 | `1f1b` | 1000.0 | 1040.0 | 4.0 | 1.0 | 2.0 | 30.0 |" in page
    assert "| -8.0 | no |" in page and "two micro-batches per rank, 8 iterations." in page
