"""Errors of `synth profile` that come before anything is measured."""

from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.cli.conftest import Synth


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
