"""`--help` of every command."""

from synth.system.discovery import docstrings
from tests.golden.commands import lines_of, run
from tests.golden.golden_set import GoldenSet

_PROGRAM = "synth"


def help_of(command: str) -> str:
    """Return the help of a command, or of the program, as a terminal shows it."""
    ended = run("--help" if command == _PROGRAM else f"{command} --help")
    assert (ended.code, ended.stderr) == (0, ""), ended
    return "\n".join([*lines_of(ended.stdout), ""])


HELP = GoldenSet(
    "help",
    [_PROGRAM, *(name for name, _ in docstrings("synth.cli", "Request"))],
    help_of,
    as_texts=True,
)
