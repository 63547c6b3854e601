"""Tables of single commands: their pages print the commands, and their numbers are measured."""

import json
from pathlib import Path

import pytest

from benchmarks import tables
from benchmarks.page_tables import ALL, commands
from benchmarks.page_tables.__main__ import main
from benchmarks.page_tables.commands import Row, compared, solved
from benchmarks.page_tables.page_table import PageTable
from benchmarks.page_tables.pages import families, frameworks
from benchmarks.results_file import Run, save
from synth.errors import SynthError

TABLES = list(ALL.values())


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_a_page_prints_the_commands_of_its_tables(table: PageTable) -> None:
    page = (tables.ROOT / table.page).read_text(encoding="utf-8")
    assert f"<!-- results: {table.name} -->" in page
    assert all(command in page for command in table.commands)


@pytest.mark.parametrize(
    "table", [table for table in TABLES if table.is_exact], ids=lambda table: table.name
)
def test_exact_tables_are_measured_again_as_saved(table: PageTable) -> None:
    saved = json.loads((tables.RESULTS / f"{table.name}.json").read_text(encoding="utf-8"))
    assert json.loads(json.dumps([row._asdict() for row in table.measure()])) == saved["rows"]


def test_the_readme_is_filled_like_the_pages_of_docs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tables.ROOT / "README.md" in tables.PAGES
    page = tmp_path / "README.md"
    page.write_text("<!-- results: two-nodes -->\nold\n<!-- /results -->\n")
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    monkeypatch.setattr(tables, "PAGES", (page,))
    assert tables.main(["--check"]) == 1
    assert "README.md differs" in capsys.readouterr().out
    assert tables.main([]) == 0 and "| `1f1b` |" in page.read_text()
    assert tables.main(["--check"]) == 0


def test_answers_of_compare_and_solve_become_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = {
        "name": "2bw", "partition": [2, 1], "makespan_us": 9, "period_us": 8, "steady_us": 3.5,
        "peak_bytes": [4, 7], "delay": 1, "versions": 2, "prediction": {"time_us": 3.25},
        "fits": True, "lower_bound_us": None, "gap": None, "recomputation": None,
    }  # fmt: skip
    monkeypatch.setattr(commands, "answer", lambda *_: {"schedules": [schedule]})
    row = Row("", "2bw", [2, 1], 9, 8, 3.5, 7, 1, 2, 3.25, True)
    assert [*compared("synth compare …")] == [row]
    found = schedule | {"stopped_by": "optimal", "lower_bound_us": 9, "gap": 0, "seconds": 0.5}
    monkeypatch.setattr(commands, "answer", lambda *_: found)
    row = Row("a", "optimal", [2, 1], 9, 8, None, 7, lower_bound_us=9, gap=0, search_s=0.5)
    assert solved("synth solve …", "a") == row
    steady = {"micro_batch_us": 3.5, "lower_bound_us": 3.0, "gap": 0.25}
    monkeypatch.setattr(commands, "answer", lambda *_: found | {"steady": steady})
    row = row._replace(micro_batch_us=3.5, lower_bound_us=3.0, gap=0.25)
    assert solved("synth solve …", "a") == row


def test_a_command_that_fails_ends_the_benchmark_with_its_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SynthError, match="no-such-profile"):
        commands.run("synth compare no-such-profile --ranks 2 --micro-batches 2")

    def fail(command: str, folder: Path | None = None) -> dict[str, object]:
        raise SynthError(f"{command} ended with 2")

    monkeypatch.setattr(frameworks, "solved", fail)
    monkeypatch.setattr(frameworks, "compared", lambda *_: iter(()))
    assert main(["periods"]) == 1
    assert "synth solve" in capsys.readouterr().err


def made(folder: Path, name: str, rows: list[dict[str, object]]) -> str:
    save(folder / "saved.json", "synth-page-tables-benchmark-1", Run(name, "", 1, 0, None), rows)
    return tables.filled("<!-- results: saved -->\n<!-- /results -->\n", folder)


def test_peaks_are_those_of_the_fullest_rank_and_of_the_first(tmp_path: Path) -> None:
    row = families.PeakRow("bpipe", [1_000_000, 3_000_000], [1_000_400, 2_999_000], [5.5])
    page = made(tmp_path, "measured-peaks", [row._asdict()])
    assert "| `bpipe` | 1 | 3.000 | 2.999 | 1.000 | 1.000 |" in page


def test_a_plan_that_is_not_proven_optimal_shows_its_gap(tmp_path: Path) -> None:
    names = ("zb-limit", "1f1b:recompute", "gpipe:recompute", "bpipe", "gis:3,half")
    rows = [Row("", name, [3], 2_000_000, 1_900_000, None, 7) for name in names]
    plan = Row("one stage per rank", "optimal", [3], 2, 1_378_000, None, 7, gap=0, search_s=6.2)
    auto = Row("any placement", "time limit", [3], 2, 1_257_000, None, 7, gap=0.121, search_s=60)
    page = made(tmp_path, "periods", [row._asdict() for row in (*rows, plan, auto)])
    assert "| **1.378 s** | proven optimal for this partition |" in page
    assert "| **1.257 s** | gap 12.1 %, to a bound for all placements |" in page


def test_a_table_that_no_page_has_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SynthError, match="no table is named 'unknown'"):
        made(tmp_path, "unknown", [])
