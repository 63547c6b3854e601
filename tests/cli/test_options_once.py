"""Options of one value are given once; the others may be repeated."""

from pathlib import Path
from typing import Any

import pytest

from synth.cli.commands import command_named
from synth.errors import SynthError
from synth.system.discovery import docstrings
from tests.cli.conftest import Synth

COMMANDS = [name for name, _ in docstrings("synth.cli", "Request")]


def parse(command: Any, *words: str) -> None:
    command.parse_args(
        command.context_class(command, resilient_parsing=True, **command.context_settings),
        list(words),
    )


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_of_one_value_is_refused_if_given_twice(name: str) -> None:
    command = command_named(name)
    for option in command.params:
        longest = max(option.opts, key=len)
        if not longest.startswith("--"):
            continue
        words = [longest] if option.is_flag else [longest, "1"]
        other = [option.secondary_opts[0]] if option.secondary_opts else words
        if option.multiple or (option.is_flag and not option.secondary_opts):
            parse(command, *words, *words)
            continue
        with pytest.raises(SynthError, match=f"{longest}.* is given more than once.* give it once"):
            parse(command, *words, *other)


def test_two_placements_are_one_line_of_error(synth_as_given: Synth, tmp_path: Path) -> None:
    asked = ("zb-1.5b-p8-m24", "-r", "4", "-m", "4", "-o", tmp_path / "plan.json")
    ended = synth_as_given("solve", *asked, "--placement", "v", "--placement", "looped:2")
    said = "error: --placement is given more than once, and takes one value; give it once\n"
    assert (ended.code, ended.stderr) == (2, said)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", COMMANDS)
def test_json_is_short_for_format_json(name: str, synth_as_given: Synth) -> None:
    command = command_named(name)
    if not any("--format" in option.opts for option in command.params):
        ended = synth_as_given(name, "--json")
        assert ended.code == 2 and "No such option: --json" in ended.stderr
        return
    context = command.context_class(command, resilient_parsing=True, **command.context_settings)
    command.parse_args(context, ["--json"])
    assert context.params["format"] == "json"
    with pytest.raises(SynthError, match="--format is given more than once"):
        parse(command, "--json", "--format", "text")


def test_both_names_of_an_option_are_the_same_option(synth_as_given: Synth) -> None:
    ended = synth_as_given(
        "solve", "zb-1.5b-p8-m24", "-r", "4", "--ranks", "8", "-m", "4", "-m", "5"
    )
    assert ended.stderr.startswith("error: --ranks/-r is given more than once, ")
