"""The request of a command: a record of its options, some of which name files to write."""

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from synth.records.command_option import CommandOption, metadata_of
from synth.records.overwrite_guard import PICTURE, FileKind, check_replaceable
from synth.records.record import Record
from synth.records.safe_write import check_outputs
from synth.report.picture.formats import check_drawable


class CommandRequest(Record):
    """The options of a command; a field with a `FileKind` is a file, or several, that it writes.

    The docstring of a command's record is its help.

    Attributes:
        launches_ranks: on this machine, so that threads are limited before libraries are imported.
    """

    launches_ranks: ClassVar[bool] = False

    @property
    def pictures(self) -> list[Path]:
        return getattr(self, "picture", None) or []

    def check_files(self, *inputs: Path | str | None) -> None:
        """Refuse files that cannot be written, before work is spent on their contents.

        Args:
            inputs: the files that are read, which must not be lost.

        Raises:
            SynthError: there is one, or a file is there that synth did not write.
        """
        files = list(self._files())
        check_outputs(*(path for path, _, _ in files), inputs=inputs)
        for path, kind, option in files:
            if kind is PICTURE:
                check_drawable(path)
            check_replaceable(path, kind, option, getattr(self, "force", None))

    def _files(self) -> Iterator[tuple[Path, FileKind, str]]:
        """Yield the files to write, their kinds, and the options that name them."""
        for name, field in type(self).model_fields.items():
            kind, option = metadata_of(field, FileKind), metadata_of(field, CommandOption)
            given = self.pictures if kind is PICTURE else getattr(self, name)
            if kind is None or option is None or given is None:
                continue
            names = option.names or (f"--{name}",)
            short = next((each for each in names if not each.startswith("--")), names[0])
            for path in given if isinstance(given, list) else [given]:
                yield path, kind, short
