"""`synth solve`: refused options, each with a hint to the solution."""

import os
from pathlib import Path

import pytest

from synth.schedule.files.plan_file import Plan
from tests.cli.conftest import NAME, SMALL_SOLVE, Synth


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--mem-limit", "40"), "40GB (= 40,000,000,000 bytes) or 40GiB (= 42,949,672,960"),
        (("--mem-limit", "40G"), "has no clear unit"),
        (("--mem-limit", "1GB,2GB"), "--mem-limit gives 2 sizes for 4 ranks"),
        (("--mem-limit", "0GB"), "more than 0 bytes"),
        (("--mem-limit", "9999999999TB"), "size '9999999999TB' is more than 1024TiB"),
        (("--recompute", "9" * 5000), "write none, all, auto, or stages from 0 to 3"),
        (("--partition", "6,6,6"), "--partition gives 3 stages for 4 ranks"),
        (("--partition", "6,6,6,x"), "'6,6,6,x' is not understood; write auto"),
        (("--partition", "6,6,6,7"), "covers 25 layers, the profile has 24"),
        (("--time-limit", "0"), "--time-limit 0 leaves no time to search; give seconds"),
        (("--time-limit", "soon"), "duration 'soon' is not understood"),
        (("--partition", "6,0,12,6"), "gives stage 1 0 layers; every stage needs at least one"),
        (("--partition", "6,-6,18,6"), "gives stage 1 -6 layers"),
        (("-o", "."), "it is a folder"),
        (("-o", ".", "--dry-run"), "it is a folder"),
        (("--gap", "200%"), "share '200%' is not understood"),
        (("--hint", "gone.json"), "cannot read gone.json"),
        (("-o", "no/such/plan.json"), "folder no/such is missing"),
        (("--ranks", "25"), "25 stages asked for, the profile has 24 layers"),
    ],
)
def test_a_bad_argument_ends_in_2_with_what_was_given_and_the_way_out(
    synth: Synth, arguments: tuple[str, ...], words: str
) -> None:
    ended = synth(*SMALL_SOLVE, *arguments)
    assert ended.code == 2
    assert ended.stdout == ""
    assert words in ended.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("--ranks", "0"),
        ("--micro-batches", "0"),
        ("--objective", "speed"),
        ("--solver", "gurobi"),
        ("--weights", "foo"),
        ("--workers", "0"),
        ("--colour",),
    ],
)
def test_a_value_that_is_no_choice_ends_in_2(synth: Synth, arguments: tuple[str, ...]) -> None:
    ended = synth(*SMALL_SOLVE, *arguments)
    assert (ended.code, ended.stdout) == (2, "")
    assert arguments[0] in ended.stderr
    assert "Value error" not in ended.stderr


def test_an_unknown_profile_is_refused_with_the_shipped_ones(synth: Synth) -> None:
    ended = synth("solve", "gpt5", "--ranks", "4", "--micro-batches", "8")
    assert ended.code == 2
    assert "zb-28.3b-p32-m96" in ended.stderr


def test_a_plan_is_not_a_profile(synth: Synth, plan_file: Path) -> None:
    ended = synth("solve", plan_file, "--ranks", "4", "--micro-batches", "8")
    assert ended.code == 2
    assert "needed 'synth-profile'" in ended.stderr


def test_a_file_where_the_outputs_folder_should_be_is_called_one(
    synth: Synth, tmp_path: Path
) -> None:
    (tmp_path / "own.json").write_text("kept")
    for name in ("own.json/plan.json", "own.json/deep/plan.json"):
        ended = synth(*SMALL_SOLVE, "-o", tmp_path / name)
        assert ended.code == 2
        assert "own.json is a file, not a folder" in ended.stderr


@pytest.mark.parametrize(
    "content", [b"my notes", b"\xff\xfe\x00", b"[1, 2]", b'{"format": "synth-frontier"}']
)
@pytest.mark.parametrize("command", ["solve", "import"])
def test_a_file_of_another_kind_is_not_written_over(
    synth: Synth, tmp_path: Path, plan_file: Path, command: str, content: bytes
) -> None:
    path = tmp_path / "own"
    arguments: tuple[str, ...] = SMALL_SOLVE
    if command == "import":
        table = tmp_path / "plan.csv"
        assert synth("export", plan_file, "-o", table).code == 0
        arguments = ("import", str(table), NAME)
    path.write_bytes(content)
    ended = synth(*arguments, "-o", path)
    assert (ended.code, ended.stdout) == (2, "")
    assert f"-o {path} would replace a file that is not a synth-schedule file" in ended.stderr
    assert "give another -o, or remove the file" in ended.stderr
    assert path.read_bytes() == content


@pytest.mark.parametrize("content", ["", '{"format": "synth-schedule", "schema_version": 1}'])
def test_an_empty_file_or_an_older_schedule_is_written_over(
    synth: Synth, tmp_path: Path, content: str
) -> None:
    path = tmp_path / "plan.json"
    path.write_text(content)
    assert synth(*SMALL_SOLVE, "--time-limit", "1ms", "-o", path).code == 0
    Plan.load(path).check()


def test_a_folder_without_permission_is_refused_before_the_search(
    synth: Synth, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Root may write anywhere, so the permission is denied here and not on disk.
    monkeypatch.setattr(os, "access", lambda *arguments: False)
    ended = synth(*SMALL_SOLVE, "-o", tmp_path / "plan.json", "--dry-run")
    assert ended.code == 2
    assert "no permission to write in folder" in ended.stderr


def test_too_many_micro_batches_are_refused_with_the_most_there_can_be(synth: Synth) -> None:
    ended = synth("solve", NAME, "--ranks", "4", "--micro-batches", "100000000")
    assert ended.code == 2
    assert "give at most 125,000 micro-batches" in ended.stderr
