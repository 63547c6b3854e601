"""The blocks of README, of the pages in `docs/` and of `notes/`: files, programs and commands.

Comments that a reader does not see say what a block is, on the line above it:

    <!-- file: tiny.py -->        the block is this file, for the commands behind it
    <!-- not run: REASON -->      its commands are parsed only
    <!-- before: COMMAND -->      this command runs before those of the block
    <!-- files of: PAGE -->       the files of another page are there before
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "notes").glob("*.md")),
]

_BLOCK = re.compile(
    r"^(?:<!-- (?P<mark>file|not run|before|files of): (?P<said>.+?) -->\n+)?"
    r"```(?P<language>\w*)\n(?P<text>.*?)^```",
    re.DOTALL | re.MULTILINE,
)
_COMMAND = re.compile(r"(?:synth|torchrun|python3?|pip|make|pytest) ")
# What searches, measures or trains.
_LONG = re.compile(r"\bsolve\(|^(?:import|from) torch|synth\.runtime", re.MULTILINE)
_SPAN = re.compile(r"`(synth [a-z]+ [^`\n]*--[^`\n]*)`")


@dataclass(frozen=True)
class Block:
    """A fenced block; a field of a mark is None if the block has no such mark."""

    language: str
    text: str
    file: str | None = None
    why_not_run: str | None = None
    before: str | None = None
    files_of: str | None = None

    @property
    def commands(self) -> list[str]:
        """The command lines, continued lines joined; comments and output are left out."""
        if self.language not in ("", "sh"):
            return []
        lines = self.text.replace("\\\n", " ").splitlines()
        return [line.split("  #")[0].strip() for line in lines if _COMMAND.match(line)]


def blocks(page: Path) -> list[Block]:
    """Return the blocks of a page in order."""
    return [
        Block(
            found["language"],
            found["text"],
            file=found["said"] if found["mark"] == "file" else None,
            why_not_run=found["said"] if found["mark"] == "not run" else None,
            before=found["said"] if found["mark"] == "before" else None,
            files_of=found["said"] if found["mark"] == "files of" else None,
        )
        for found in _BLOCK.finditer(page.read_text(encoding="utf-8"))
    ]


def is_quick(block: Block) -> bool:
    """Return True if a block computes for about a second, and needs none that takes longer."""
    if block.why_not_run is not None or block.file is not None:
        return False
    if block.language == "python":
        return not _LONG.search(block.text)
    commands = block.commands
    return bool(commands) and all("compare" in c and "--no-solve" in c for c in commands)


def spans(page: Path) -> Iterator[str]:
    """Yield the commands with options that stand in a sentence or a table."""
    text = _BLOCK.sub("", page.read_text(encoding="utf-8"))
    yield from (found[1] for found in _SPAN.finditer(text))
