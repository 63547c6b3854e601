"""Command lines of tests, which add options to common ones: the later one replaces the earlier."""

from collections.abc import Sequence
from typing import Any

from synth.cli.commands import command_named
from synth.cli.read.parsed_command import may_repeat
from synth.system.discovery import docstrings


def last_of_each(words: Sequence[str]) -> list[str]:
    """Return a command line with only the last of each option of one value.

    Args:
        words: the name of the command, and what follows it.
    """
    if not words or words[0] not in [name for name, _ in docstrings("synth.cli", "Request")]:
        return list(words)
    options = {name: option for option in command_named(words[0]).params for name in option.opts}
    groups: list[tuple[Any, list[str]]] = [(None, [words[0]])]
    rest = iter(words[1:])
    for word in rest:
        option = options.get(word.partition("=")[0]) if word.startswith("-") else None
        takes_next = option is not None and "=" not in word and not option.is_flag
        groups.append((option, [word, *([next(rest, "")] if takes_next else [])]))
    found: list[str] = []
    for place, (option, group) in enumerate(groups):
        is_replaced = any(later is option for later, _ in groups[place + 1 :])
        if option is None or may_repeat(option) or not is_replaced:
            found += group
    return found
