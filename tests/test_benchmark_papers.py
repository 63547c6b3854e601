"""The papers' tables: printed figures, own ones, and the page that has them side by side."""

import json
from itertools import product
from pathlib import Path

import pytest

from benchmarks import tables
from benchmarks.papers import ALL
from benchmarks.papers.__main__ import main
from benchmarks.papers.comparison import (
    PaperTable,
    Printed,
    Row,
    agrees,
    counted,
    difference,
    made,
    printed_rows,
)
from benchmarks.papers.tables.bitpipe_model import MODELS, Layouts, searched, step
from synth.errors import SynthError

PAGE = tables.ROOT / "docs" / "papers.md"
QUICK = [table for table in ALL.values() if not table.is_slow]
SLOW = [table for table in ALL.values() if table.is_slow]


def saved_rows(table: PaperTable) -> list[Row]:
    path = tables.RESULTS / f"papers-{table.name}.json"
    return [Row(**row) for row in json.loads(path.read_text(encoding="utf-8"))["rows"]]


def measured_again(table: PaperTable) -> bool:
    return [*table.measure()] == saved_rows(table)


@pytest.mark.parametrize("table", ALL.values(), ids=lambda table: table.name)
def test_every_printed_figure_has_its_own_within_the_stated_tolerance(table: PaperTable) -> None:
    printed = printed_rows()[table.name]
    rows = saved_rows(table)
    assert [row.row for row in rows] == [*printed]
    for row in rows:
        assert agrees(printed[row.row], row), row
        has_reason = printed[row.row].reason or not difference(printed[row.row], row)
        assert has_reason or agrees(printed[row.row]._replace(tolerance=0.0), row), row


def test_no_printed_figure_is_left_out() -> None:
    assert printed_rows().keys() == ALL.keys()


@pytest.mark.parametrize("table", QUICK, ids=lambda table: table.name)
def test_quick_tables_are_measured_again_as_saved(table: PaperTable) -> None:
    assert measured_again(table)


@pytest.mark.slow
@pytest.mark.parametrize("table", SLOW, ids=lambda table: table.name)
def test_slow_tables_are_measured_again_as_saved(table: PaperTable) -> None:
    assert measured_again(table)


@pytest.mark.parametrize("table", ALL.values(), ids=lambda table: table.name)
def test_the_page_has_each_table_and_its_command(table: PaperTable) -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert f"<!-- results: papers-{table.name} -->" in text
    assert f"python -m benchmarks.papers {table.name}\n" in text


def test_a_tolerance_of_zero_asks_for_the_printed_digits() -> None:
    exact = Printed("0.24", 0.0, "a paper", "")
    assert agrees(exact, Row("one", 0.2449)) and not agrees(exact, Row("one", 0.246))
    loose = exact._replace(tolerance=0.1)
    assert agrees(loose, Row("one", 0.26)) and not agrees(loose, Row("one", 0.27))
    assert agrees(exact._replace(tolerance=None), Row("one", 7.0))


def test_words_are_compared_case_by_case() -> None:
    row = counted("bubble", (n != 3 for n in range(4)))
    assert (row.equal, row.cases) == (3, 4)
    words = Printed("(p−1)/m", 0.25, "a paper", "")
    assert agrees(words, row) and not agrees(words._replace(tolerance=0.0), row)
    with pytest.raises(SynthError, match="printed as words"):
        difference(words, Row("bubble", 1.0))


def test_a_command_prints_and_saves_its_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "saved.json"
    assert main(["bubbles", "--json", str(saved)]) == 0
    out = capsys.readouterr().out
    assert "| 1f1b: over the work | (p−1)/m | 28 of 28 | none |" in out
    assert made(json.loads(saved.read_text())) in out


def test_the_page_s_sentence_on_the_plans_is_that_of_their_results() -> None:
    path = tables.RESULTS / "bitpipe-plan.json"
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    said = []
    for case in ("bert-64-a800.json", "gpt-96-a800.json"):
        ranked = [row for row in rows if row["case"] == case]
        best, bitpipe = ranked[0], next(r for r in ranked if r["schedule"] == "bitpipe:1")
        assert best["makespan_us"] == min(row["makespan_us"] for row in ranked)
        said.append(
            [round(100 - 100 * best[k] / bitpipe[k]) for k in ("makespan_us", "peak_bytes")]
        )
    (time, bytes_), (other_time, other_bytes) = said
    text = PAGE.read_text(encoding="utf-8")
    assert f"{time} % (BERT-64) and {other_time} % (GPT-96) less time than BitPipe" in text
    assert f"in {bytes_} and {other_bytes} % less memory" in text


def test_reasons_have_the_figures_of_the_simulation() -> None:
    leads = []
    for model, family in product(MODELS, ("1f1b", "mixpipe", "interleaved:2", "bitpipe:1")):
        speeds = {True: [0.0], False: [0.0]}
        for one in searched(model, family, 32, is_default=True):
            speeds[one.layout.ranks > 8] += [one.samples_per_s] * (one.layout.ranks >= 8)
        leads.append(max(speeds[True]) / max(speeds[False]))
    reason = printed_rows()["bitpipe-cluster"]["D = 8 is the best on 32 GPUs"].reason
    assert f"D = 16 or 32 is up to {100 * (max(leads) - 1):.0f} % faster here" in reason


def test_the_busiest_stage_of_amoebanet_follows_from_its_speed_up() -> None:
    # 8 devices at 3.48 of 8: the bubble of 32 micro-batches, and the imbalance.
    share = 8 / 3.48 / (1 + 7 / 32)
    assert f"busiest stage has {share:.1f} times the mean work" in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize(("model", "sequences"), [("BERT-64", 4), ("GPT-96", 1)])
@pytest.mark.parametrize("family", ["bitpipe:1", "chimera"])
def test_memory_admits_the_paper_s_micro_batches_and_none_of_twice_the_size(
    model: str, sequences: int, family: str
) -> None:
    steps = [step(model, family, Layouts(1, 8, count), 8) for count in (sequences, 2 * sequences)]
    assert [one.fits for one in steps] == [True, False]


@pytest.mark.parametrize("name", ["bert-64", "gpt-96"])
def test_the_page_shows_the_estimated_models(name: str) -> None:
    config = (tables.ROOT / "benchmarks" / "papers" / "models" / f"{name}.json").read_text()
    assert f"<!-- file: {name}.json -->\n```json\n{config}```" in PAGE.read_text(encoding="utf-8")
