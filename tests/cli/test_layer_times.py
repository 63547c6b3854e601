"""`synth profile times.csv`: a profile of times that another program has measured."""

from pathlib import Path

import pytest

from synth.profile import Profile
from tests.cli.conftest import Synth

TIMES = """
name,      count, forward_ms, backward_ms, saved_MB, output_MB
embedding, 1,     0.4,        0.5,         12,       12
block,     3,     3.1,        6.0,         180,      12
head,      1,     2.9,        5.7,         410,      0
"""


def test_a_csv_with_flops_and_a_peak_say_what_an_mfu_is_of(synth: Synth, tmp_path: Path) -> None:
    (tmp_path / "times.csv").write_text("name,forward_ms,backward_ms,forward_GFLOP\na,1,2,5\n")
    command = ("profile", tmp_path / "times.csv", "-o", tmp_path / "p.json")
    ended = synth(*command, "--peak-flops", "30TFLOPS")
    assert "15 GFLOP per micro-batch, forward and backward; peak 30 TFLOP/s" in ended.stdout
    assert Profile.load(tmp_path / "p.json").peak_flops_per_s == 30e12
    ended = synth(*command, "--peak-flops", "fast")
    assert ended.code == 2 and "write for example 989e12 or 989TFLOPS" in ended.stderr


def test_the_command_makes_a_profile_of_a_csv(synth: Synth, tmp_path: Path) -> None:
    (tmp_path / "times.csv").write_text(TIMES)
    ended = synth("profile", tmp_path / "times.csv", "-o", tmp_path / "p.json", "--seq-len", "7")
    assert ended.code == 0, ended.stderr
    assert "block" in ended.stdout
    profile = Profile.load(tmp_path / "p.json")
    assert (profile.name, profile.workload.tokens, len(profile.layers)) == ("times", 7, 5)


@pytest.mark.parametrize(
    "option",
    ["--ranks 2", "--optimizer sgd", "--dtype bfloat16", "--master-weights", "--iters 20"],
)
def test_options_of_a_measurement_are_refused_for_a_csv(
    option: str, synth: Synth, tmp_path: Path
) -> None:
    (tmp_path / "times.CSV").write_text(TIMES)
    given = option.split()
    ended = synth("profile", tmp_path / "times.CSV", "-o", tmp_path / "p.json", *given)
    assert (ended.code, ended.stdout) == (2, "")
    assert f"leave {given[0]} out" in ended.stderr and ended.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("saved_MB", "activations", "has a column 'activations'; known columns"),
        ("head", "block", "two layers are called 'block'"),
        ("head", "h\x1b[31mead", "has U+001B in it"),
    ],
)
def test_a_wrong_csv_is_refused_without_a_traceback(
    old: str, new: str, message: str, synth: Synth, tmp_path: Path
) -> None:
    (tmp_path / "times.csv").write_text(TIMES.replace(old, new))
    ended = synth("profile", tmp_path / "times.csv", "-o", tmp_path / "p.json")
    assert (ended.code, ended.stdout) == (2, "")
    assert message in ended.stderr and "Traceback" not in ended.stderr
    assert not (tmp_path / "p.json").exists()


def test_a_layer_that_saves_less_than_its_input_is_named(synth: Synth, tmp_path: Path) -> None:
    head = "name,count,forward_ms,backward_ms,saved_MB,output_MB\n"
    command = ("profile", tmp_path / "times.csv", "-o", tmp_path / "p.json")
    for rows, named in (
        ("in,1,1,2,5,12\nbody,3,1,2,12,12\nout,1,1,2,11,0\n", "warning: out: saved is less"),
        ("in,1,1,2,5,12\nbody,3,1,2,12,12\nout,1,1,2,12,0\n", None),
        ("in,1,1,2,0,12\nout,1,1,2,0,0\n", None),
    ):
        (tmp_path / "times.csv").write_text(head + rows)
        ended = synth(*command)
        assert ended.code == 0
        assert ("warning" in ended.stderr) == (named is not None)
        assert named is None or named in ended.stderr
