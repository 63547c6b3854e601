"""Tables of a command's options in `docs/commands.md`, made from the program.

    python -m tests.docs.option_tables     fills the tables anew

A table stands between two comments, of which the first names commands, and a command whose table
has some of their options already:

    <!-- options: compare and frontier, beside solve -->
    <!-- /options -->
"""

import re
from functools import cache
from typing import Any

import typer

from synth.cli.commands import app
from tests.docs.pages import ROOT

PAGE = ROOT / "docs" / "commands.md"
# Options of most commands, which the page explains once; groups that other pages explain.
EVERYWHERE = {"--quiet", "--format", "--force", "--width", "--help"}
ELSEWHERE = {"Checkpoints and restarts", "Late gradients (plans without a flush)"}

_PLACE = re.compile(
    r"(<!-- options: (\w+)(?: and (\w+))?(?:, beside (\w+))? -->\n).*?(<!-- /options -->)",
    re.DOTALL,
)


@cache
def options(command: str) -> dict[str, Any]:
    """Return the options of a command by name, without those that are explained elsewhere."""
    group: Any = typer.main.get_command(app)
    _, found, _ = group.resolve_command(group.make_context("synth", [command]), [command])
    named = {max(each.opts, key=len): each for each in found.params if not each.hidden}
    return {
        name: option
        for name, option in named.items()
        if name.startswith("--")
        and name not in EVERYWHERE
        and getattr(option, "rich_help_panel", None) not in ELSEWHERE
    }


def filled(text: str) -> str:
    """Return a page with all its tables made anew."""

    def made(place: re.Match[str]) -> str:
        mark, first, second, other, end = place.groups()
        shown = options(first) | (options(second) if second else {})
        known = options(other) if other else {}
        rows = [_row(option) for name, option in shown.items() if name not in known]
        return "\n".join((f"{mark}| option | meaning |", "|---|---|", *rows, end))

    return _PLACE.sub(made, text)


def _row(option: Any) -> str:
    both = sorted([*option.opts, *option.secondary_opts], key=len, reverse=True)
    names = ", ".join(f"`{name}`" for name in both)
    meaning = " ".join(option.help.split()).replace("|", "\\|").replace("_", "\\_")
    said = option.show_default
    default = said if isinstance(said, str) else option.default
    given = "" if option.is_flag or default in (None, "", ()) else f" Default: {default}."
    return f"| {names} | {meaning}{given} |"


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
