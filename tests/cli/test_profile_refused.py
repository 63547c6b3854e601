"""Errors of `synth profile` that come before anything is measured."""

from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.cli.conftest import Synth

MISFITS = """
from torch import nn
def layers():
    return [nn.Embedding(256, 8), nn.Linear(9, 8)]
def fails():
    raise ValueError("no such width")
"""


@pytest.mark.parametrize(
    ("function", "message"),
    [("layers", "layer 'Linear.1', called as layer(x, targets)"), ("fails", "no such width")],
)
def test_a_model_that_fails_is_refused_before_links_are_measured(
    synth: Synth,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    function: str,
    message: str,
) -> None:
    (tmp_path / "misfits.py").write_text(MISFITS)
    monkeypatch.setattr("synth.runtime.training.launch.launch_link_probe", None)
    model, size = f"{tmp_path}/misfits.py:{function}", ("--seq-len", "4", "--iters", "1")
    ended = synth("profile", model, *size, "--ranks", "2", "-o", tmp_path / "profile.json")
    assert ended.code == 2 and message in ended.stderr
    assert not (tmp_path / "profile.json").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("gtp",), "no model is called 'gtp'"),
        (("missing.py:layers",), "missing.py"),
        (("gpt", "--arg", "depth=3"), "'gpt' takes no argument 'depth'"),
        (("gpt", "--dtype", "float8"), "dtype 'float8' is unknown"),
        (("gpt", "--autocast", "float8"), "dtype 'float8' is unknown"),
    ],
    ids=["model", "file", "argument", "dtype", "autocast"],
)
def test_a_wrong_model_is_refused_before_links_are_measured(
    synth: Synth,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.setattr("synth.runtime.training.launch.launch_link_probe", None)
    ended = synth("profile", *arguments, "--ranks", "2", "-o", tmp_path / "profile.json")
    assert (ended.code, ended.stdout) == (2, "")
    assert message in ended.stderr
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("started", "arguments", "message"),
    [
        (None, ("--tensor-parallel", "2"), "takes as many processes, and torchrun started none; "
         "start torchrun --nproc-per-node 2 with this command"),
        ("3", ("--tensor-parallel", "2"), "torchrun started 3; start torchrun --nproc-per-node 2"),
        (None, ("--parallelize", "mine.py:divide"), "give --tensor-parallel N, too"),
    ],
    ids=["alone", "too many", "without a group"],
)  # fmt: skip
def test_a_group_of_another_size_is_refused_before_anything_is_measured(
    synth: Synth,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    started: str | None,
    arguments: tuple[str, ...],
    message: str,
) -> None:
    if started is not None:
        for name, value in (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", started)):
            monkeypatch.setenv(name, value)
    ended = synth("profile", "gpt", *arguments, "-o", tmp_path / "profile.json")
    assert (ended.code, ended.stdout) == (2, "")
    assert message in ended.stderr
