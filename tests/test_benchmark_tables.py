"""Benchmarks that save their rows: the tables made of them, and their judgement."""

import re
from pathlib import Path

import pytest

from benchmarks import data_parallel, data_parallel_table, tables, time_limits, v_limits
from benchmarks.split_cost_table import Row as SplitRow
from benchmarks.split_cost_table import table as split_table
from benchmarks.v_limits import Case
from synth.costs import uniform_costs


def page_of(folder: Path) -> str:
    return tables.filled("<!-- results: saved -->\n<!-- /results -->\n", folder)


def test_a_command_s_time_is_compared_with_all_its_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def measured(command: list[str]) -> time_limits.Measured:
        asked.append(" ".join(command))
        return time_limits.Measured(3, 5.25, 264_000_000)

    monkeypatch.setattr(time_limits, "measure", measured)
    given = ["--limit", "2", "--only", "-r 64 -m 512", "--json", str(tmp_path / "saved.json")]
    assert time_limits.main(given) == 0
    assert all("--time-limit 2.0s" in command for command in asked)
    page = page_of(tmp_path)
    # `compare` has two limits; the options that fix the other choices are given and not shown.
    assert "| 300 | `compare -r 64 -m 512` | 5.2 | +1.2 | 264 | 3 |" in page
    assert "| 300 | `solve -r 64 -m 512 --placement v` | 5.2 | +3.2 | 264 | 3 |" in page
    assert sum("--recompute none" in command for command in asked) == 6


COSTS = uniform_costs(
    4,
    forward_us=10,
    backward_input_us=10,
    backward_weight_us=10,
    saved_bytes=2,
    saved_w_bytes=1,
)
CASE = Case("drawn", 4, COSTS)


def test_families_within_a_memory_limit_are_saved_by_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(v_limits, "cases", lambda: iter([CASE]))
    assert v_limits.main(["--json", str(tmp_path / "saved.json")]) == 0
    cap = CASE.released_peak_bytes(1.25)
    found = " | ".join(str(CASE.period_us(name, cap) or "none") for name in v_limits.OTHERS)
    assert f"| drawn 1.25x | {cap / 1e9:.2f} | {found} | " in page_of(tmp_path)


@pytest.mark.parametrize(
    ("limit_us", "code"), [((5, 5, 5, 5), 0), ((6, 5, 5, 5), 1), ((5, 4, 5, 5), 1)]
)
def test_a_schedule_longer_than_the_greedy_or_than_in_less_memory_is_a_failure(
    limit_us: tuple[int, ...], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found_us = iter(limit_us)
    monkeypatch.setattr(v_limits, "cases", lambda: iter([CASE]))
    monkeypatch.setattr(
        Case, "period_us", lambda _, name, cap: next(found_us) if name == "zb-v-limit" else 5
    )
    assert v_limits.main([]) == code


def test_printed_rates_stand_beside_those_of_the_families(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates = {"zb-v": 0.08, "zb-v-greedy": 0.07, "zb-v-limit": 0.06}
    row = v_limits.Printed(CASE, 0.0697)
    monkeypatch.setattr(v_limits, "printed", lambda: iter([row]))
    monkeypatch.setattr(v_limits.Printed, "rate_of", lambda _, name: rates[name])
    given = ["--printed", "--json", str(tmp_path / "saved.json")]
    assert v_limits.main(given) == 0
    assert "| drawn | 0.0697 | 0.0800 | 0.0700 | 0.0600 |" in page_of(tmp_path)
    rates["zb-v-limit"] = 0.0698
    assert v_limits.main(given) == 1


def test_ways_to_reduce_gradients_are_compared_by_the_slowest_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, wrapped, after = "data_parallel", "DistributedDataParallel", "after the step"
    fast = {base: [0.1, 0.1, 0.1], wrapped: [0.3, 0.1, 0.1], after: [0.1, 0.1, 0.1]}
    slow = {base: [0.2, 0.2, 0.3], wrapped: [0.1, 0.4, 0.4], after: [0.8, 0.8, 0.1]}
    monkeypatch.setattr(data_parallel, "_measured", lambda *_: [fast, slow])
    assert data_parallel.main(["--rounds", "3", "--json", str(tmp_path / "saved.json")]) == 0
    page = page_of(tmp_path)
    assert f"| 24 | 64 | {base} | 200.0 |  |" in page
    assert f"| 24 | 64 | {wrapped} | 400.0 | 0.50 |" in page
    assert f"| 2 | 768 | {after} | 800.0 | 0.25 |" in page
    assert data_parallel_table.FORMAT in (tmp_path / "saved.json").read_text()


def test_a_layer_that_torch_cannot_split_has_no_figures_of_its_split() -> None:
    mib = 2**20
    figures = (12.0, 1.01, 0.99, 1.0, None, 2 * mib, 2 * mib, 3 * mib, None)
    made = split_table({"rows": [SplitRow("embedding", "float32", *figures)._asdict()]})
    cells = re.split(r" *\| *", made.splitlines()[-1])[1:-1]
    assert cells[2:7] == ["12.0", "1.010", "0.990", "1.000", "–"]
    assert cells[7:] == ["2.00", "2.00", "3.00", "1.500", "–"]
