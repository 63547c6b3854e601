"""Refusing to write over a file that is not one of ours."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from synth.errors import SynthError
from synth.records.safe_read import parse_json, read_bytes
from synth.records.safe_write import is_stream

# The bytes at the beginning of a file that tell its kind.
_HEAD_BYTES = 4096


@dataclass(frozen=True)
class FileKind:
    """A kind of file that commands write.

    Attributes:
        words: its name, for messages.
        begins: matches the beginning of every file of the kind.
        format: the `format` in JSON files that have one.
    """

    words: str
    begins: re.Pattern[str]
    format: str | None = None

    @classmethod
    def of_format(cls, name: str) -> Self:
        """Return the kind of our JSON files with a `format`."""
        return cls(f"a {name} file", re.compile(rf'\s*{{\s*"format":\s*"{name}"'), name)

    def is_kind_of(self, path: Path) -> bool:
        """True if a file is of this kind.

        Raises:
            OSError: it cannot be read.
        """
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES).decode("utf-8", errors="replace")
        if self.begins.match(head) is not None or self.format is None:
            return self.begins.match(head) is not None
        try:  # someone's tool may have sorted the keys
            data = parse_json(read_bytes(path, self.words))
        except (SynthError, ValueError):
            return False
        return isinstance(data, dict) and data.get("format") == self.format


RUN = FileKind.of_format("synth-run")
TRACE = FileKind.of_format("synth-trace")
CALIBRATION = FileKind.of_format("synth-calibration")
PROFILE = FileKind.of_format("synth-profile")
SCHEDULE = FileKind.of_format("synth-schedule")
PICTURE = FileKind(
    "a picture made by synth",
    re.compile(
        r'<svg xmlns="http://www\.w3\.org/2000/svg" width="\d+" height="\d+" '
        r'viewBox="0 0 \d+ \d+"(?: role="img" aria-label="[^"]*")?>\n'
        r"<style>text\{font-family:sans-serif\}"
        r"|%PDF-[^\n]*\n%[^\n]*picture made by synth"
        r"|\ufffdPNG\r\n\x1a\n.{,200}?tEXtSoftware\x00synth",
        re.DOTALL,
    ),
)
PERFETTO = FileKind(
    "a Perfetto file made by synth", re.compile(r'\{"displayTimeUnit": "ms", "traceEvents": \[')
)
PAGE = FileKind(
    "a page made by synth", re.compile(r'<!doctype html>\n<html lang="en" data-made-by="synth">')
)
TORCH_CSV = FileKind("a schedule of PyTorch's", re.compile(r'\s*[",]*\(?\d+[A-Z]'))

TORCHTITAN = FileKind(
    "torchtitan's options",
    re.compile(r"# for torchtitan \d|\[parallelism\]\npipeline_parallel_"),
)
MEGATRON = FileKind("a layout of Megatron-LM's", re.compile(r"E[tmL|()*\d]*\n"))
JAXPP = FileKind("a schedule for JaxPP", re.compile(r'"""Schedule [^\n]* written by synth'))
STAGE_TABLE = FileKind("a table of stages", re.compile(r'\{\s*"schedule": [^\n]*\n\s*"num_ranks"'))


def check_replaceable(
    path: Path | None, kind: FileKind, option: str, force: bool | None = False
) -> None:
    """Refuse to write over a file, if one is given, that is not of a kind.

    An empty file may be replaced, and what is not a regular file is written to.

    Args:
        option: with which the path was given.
        force: the user says that any file may be replaced; None: the command has no such option.

    Raises:
        SynthError: the file is something else, or cannot be read.
    """
    if path is None or force or is_stream(path) or not path.is_file() or not path.stat().st_size:
        return
    try:
        is_ours = kind.is_kind_of(path)
    except OSError as error:
        raise SynthError(f"cannot read {path}: {error.strerror or error}") from None
    if not is_ours:
        raise SynthError(
            f"{option} {path} would replace a file that is not {kind.words}; give another "
            f"{option}, or {'remove the file' if force is None else '--force to replace it'}"
        )
