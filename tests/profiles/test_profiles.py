"""The shipped profiles: what the papers print, and how they are found."""

from pathlib import Path

import pytest

from synth.costs.partition_costs import partition_costs
from synth.errors import SynthError
from synth.profile import Profile
from synth.profiles import find, names, zero_bubble
from synth.profiles.zero_bubble import ROWS, PublishedModel


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_the_shipped_file_is_what_the_derivation_gives(row: PublishedModel) -> None:
    assert find(row.name).read_text() == zero_bubble.profile(row).to_json()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_cutting_equally_gives_the_published_stage_times(row: PublishedModel) -> None:
    costs = partition_costs(Profile.load(find(row.name)), [row.layers_per_stage] * row.num_ranks)
    for stage in costs.stages:
        assert {kind: stage.duration_us[kind] for kind in row.stage_us} == row.stage_us
    assert costs.boundary_us(0, 0, 1) == row.transfer_us


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_layers_and_head_and_embedding_lie_equally_on_the_ranks(row: PublishedModel) -> None:
    assert row.num_blocks + 2 == row.layers_per_stage * row.num_ranks


def test_the_1_5b_row_s_bytes_worked_by_hand() -> None:
    # s·b = 6144, h = 2304, a = 24: saved 6144 · (34·2304 + 5·24·1024) = 1 236 271 104 per layer,
    # 32·s·b·h = 452 984 832 of it left for W; boundary 6144·2304·2; 12h² + 13h = 63 730 944
    # parameters at 18 bytes.
    costs = partition_costs(Profile.load(find("zb-1.5b-p8-m24")), [3] * 8)
    middle = costs.stages[3]
    assert middle.saved_bytes == 3 * 1_236_271_104
    assert middle.saved_w_bytes == 3 * 452_984_832
    assert middle.output_bytes == 28_311_552
    assert middle.static_bytes == 3 * 63_730_944 * 18
    assert costs.stages[-1].output_bytes == 0


def test_published_profiles_cannot_be_run() -> None:
    assert not any(Profile.load(find(row.name)).workload.runnable for row in ROWS)


def test_every_shipped_file_loads_and_bears_its_own_name() -> None:
    assert [Profile.load(find(name)).name for name in names()] == list(names())


def test_a_file_that_exists_wins_over_a_shipped_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("zb-1.5b-p8-m24").write_text("mine")
    assert find("zb-1.5b-p8-m24").read_text() == "mine"


def test_an_unknown_name_is_refused_with_the_shipped_ones() -> None:
    with pytest.raises(SynthError, match=r"'gpt5' is neither a file nor shipped.*zb-6\.2b-p8-m24"):
        find("gpt5")


def test_a_folder_is_refused_by_that_name(tmp_path: Path) -> None:
    with pytest.raises(SynthError, match=r"is a folder; give a file in it.*zb-6\.2b-p8-m24"):
        find(str(tmp_path))


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("llama3-8b-h101-tp8", "llama3-8b-h100-tp8"),
        ("lama3-70b-h100-tp8-s8192", "llama3-70b-h100-tp8-s8192"),
        ("gpt-byte-cpu", "gpt-bytes-cpu"),
    ],
)
def test_a_mistyped_name_is_answered_with_the_one_meant(given: str, meant: str) -> None:
    with pytest.raises(SynthError, match=f"; did you mean {meant}\\?$"):
        find(given)


def test_writing_all_gives_the_shipped_files(tmp_path: Path) -> None:
    zero_bubble.write_all(tmp_path)
    written = {path.stem: path.read_text() for path in tmp_path.iterdir()}
    assert written == {row.name: find(row.name).read_text() for row in ROWS}
