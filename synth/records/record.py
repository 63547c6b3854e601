"""Validated, immutable records and their JSON files: unknown keys and missing fields are errors."""

import json
import os
import reprlib
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
)

from synth.errors import SynthError
from synth.records.safe_read import (
    MOST_BYTES,
    AnyPath,
    as_path,
    descriptor_of,
    half_character,
    parse_json,
    read_text,
    why_unreachable,
)
from synth.units import shown

_Parsed = TypeVar("_Parsed", bound="FileRecord")

_BRIEF = reprlib.Repr()
_BRIEF.maxstring = _BRIEF.maxother = 60

# The most characters of a key that is shown unshortened.
_LONGEST_KEY = 60

# Characters of a name that are put into the name of the temporary file that is renamed to it.
_PREFIX = 16

# As the name of an output it often means stdout, which has the answers of commands.
_DASH = Path("-")
_NO_STDOUT = "- as a name would mean stdout, which has this command's answer"


class Record(BaseModel):
    """A frozen record; values are checked when it is made and trusted afterwards."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some fields changed, validated again."""
        return type(self).model_validate({**dict(self), **changes})


class BriefRecord(Record):
    """A record whose JSON leaves out the fields of `LEFT_OUT` where they have their defaults.

    Files of earlier versions have no such fields.
    """

    LEFT_OUT: ClassVar[tuple[str, ...]]

    @model_serializer(mode="wrap")
    def _without_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = handler(self)
        for name in self.LEFT_OUT:
            default = type(self).model_fields[name].get_default(call_default_factory=True)
            if getattr(self, name) == default:
                fields.pop(name, None)
        return fields


class FileRecord(Record):
    """A record that is the whole of a JSON file, with a format name and a schema version.

    Files are written in `VERSION`; those from `OLDEST` on are read. The keys of `OF_FILE` describe
    the file and are not fields. `SINCE` has the version that added a key, by its path
    (`claim.certificate`); a file of an earlier version must not have it. Keys without an entry, and
    those inside lists, are not checked. Absent values are left out of the file, or null in it if
    `WRITES_NULL`. `MADE_BY` are the commands that write such files.
    """

    FORMAT: ClassVar[str]
    VERSION: ClassVar[int]
    OLDEST: ClassVar[int] = 1
    MADE_BY: ClassVar[tuple[str, ...]]
    MOST_BYTES: ClassVar[int] = MOST_BYTES
    OF_FILE: ClassVar[tuple[str, ...]] = ("format", "schema_version")
    SINCE: ClassVar[Mapping[str, int]] = {}
    WRITES_NULL: ClassVar[bool] = False

    @classmethod
    def made_by(cls) -> str:
        """Return the commands that write such files, as an error names them."""
        return " or ".join(f"`{command}`" for command in cls.MADE_BY)

    def to_json(self) -> str:
        """Render the file's text; two equal records give the same text."""
        return json.dumps(self.to_data(), indent=1) + "\n"

    def to_data(self) -> dict[str, Any]:
        """Return the file as parsed JSON."""
        head = {"format": self.FORMAT, "schema_version": self.VERSION}
        return {**head, **self.model_dump(mode="json", exclude_none=not self.WRITES_NULL)}

    def save(self, path: AnyPath) -> None:
        """Write the file atomically: a reader sees the old one or the new one, never a part."""
        write_atomically(path, self.to_json())

    @classmethod
    def load(cls: type[_Parsed], path: AnyPath) -> _Parsed:
        """Read and validate a file.

        Raises:
            SynthError: the file is absent, too large, no JSON, of another format, newer, or a field
                is wrong.
        """
        return cls.model_validate_file(cls.read_data(path), str(path))

    @classmethod
    def read_data(cls, path: AnyPath) -> Any:
        """Read and parse a file, without validating its contents."""
        text = read_text(path, f"a {cls.FORMAT} file", cls.MOST_BYTES)
        return cls._parsed(text, str(path))

    @classmethod
    def from_json(cls: type[_Parsed], text: str, name: str = "the text") -> _Parsed:
        """Parse and validate a file's text; `name` is how errors call it."""
        return cls.model_validate_file(cls._parsed(text, name), name)

    @classmethod
    def _parsed(cls, text: str, name: str) -> Any:
        try:
            return parse_json(text)
        except ValueError as error:
            raise SynthError(
                f"{name} is not JSON: {error}; it was truncated or edited: make it again with "
                f"{cls.made_by()}"
            ) from None

    @classmethod
    def model_validate_file(cls: type[_Parsed], data: Any, name: str) -> _Parsed:
        """Check the format and version of parsed JSON, then its fields."""
        if not isinstance(data, dict) or data.get("format") != cls.FORMAT:
            given = data.get("format", "none") if isinstance(data, dict) else type(data).__name__
            raise SynthError(
                f'{name}: "format" is {_brief(given)}, needed {cls.FORMAT!r} '
                f"(made by {cls.made_by()})"
            )
        version = data.get("schema_version")
        if type(version) is not int or not cls.OLDEST <= version <= cls.VERSION:
            way_out = (
                "upgrade synth"
                if isinstance(version, int) and version > cls.VERSION
                else f"make the file again with {cls.made_by()}"
            )
            known = " to ".join(map(str, sorted({cls.OLDEST, cls.VERSION})))
            raise SynthError(
                f"{name}: schema_version is {_brief(version)}, this synth reads {known}; {way_out}"
            )
        cls._check_keys(data, version, name)
        body = {k: v for k, v in data.items() if k not in cls.OF_FILE}
        try:
            checked = cls.model_validate(body)
        except ValidationError as error:
            raise SynthError(
                f"{name} is not a valid {cls.FORMAT} file:\n{describe(error)}"
            ) from None
        half = half_character(body)
        if half is not None:
            raise SynthError(f"{name} has {half} in it, half of a character; needed: plain text")
        return checked

    @classmethod
    def _check_keys(cls, data: Mapping[str, Any], version: int, name: str) -> None:
        """Refuse keys that the file's version did not have yet."""
        for path, since in cls.SINCE.items():
            if since > version and _has_key(data, path):
                raise SynthError(
                    f"{name}: {path} came with schema_version {since}, and schema_version is "
                    f"{version}; leave it out, or make the file again with {cls.made_by()}"
                )


def _has_key(data: Any, path: str) -> bool:
    """True if there is a value at a path of keys, such as `claim.certificate`.

    A list on the way stands for all its elements, and the key `*` for all values of an object.
    """
    found = [data]
    for key in path.split("."):
        found = [one for each in found for one in (each if isinstance(each, list) else [each])]
        tables = [each for each in found if isinstance(each, dict)]
        if key == "*":
            found = [value for table in tables for value in table.values()]
        else:
            found = [table.get(key) for table in tables]
    return any(each is not None for each in found)


def describe(error: ValidationError, most: int = 5) -> str:
    """Render pydantic's findings as one line per field: where, what was wrong, what was given."""
    lines = []
    for found in error.errors()[:most]:
        where = ".".join(_named(part) for part in found["loc"]) or "(file)"
        message = found["msg"].removeprefix("Value error, ")
        is_told = found["type"] in ("missing", "value_error")
        given = "" if is_told else f", given {_brief(found['input'])}"
        lines.append(f"  {where}: {message}{given[:80]}")
    if error.error_count() > most:
        lines.append(f"  … and {error.error_count() - most} more")
    return "\n".join(lines)


def _named(part: int | str) -> str:
    """A key or a place of a file; unusual keys are in quotes."""
    text = str(part)
    return text if len(text) <= _LONGEST_KEY and text.isprintable() else shown(text)


def _brief(given: object) -> str:
    """Show a value of a file, shortened to its beginning if it is long or deep."""
    return _BRIEF.repr(given)


def is_stream(path: Path) -> bool:
    """True if a path exists but is not a regular file, or is an open file such as /dev/stdout.

    Do not pass a resolved path: an open pipe has none, and an open file's name may have changed
    hands.
    """
    return path.exists() and (not path.is_file() or descriptor_of(path) is not None)


def write_atomically(path: AnyPath, contents: str | bytes) -> None:
    """Write a file through a temporary one beside it, so that it is never half-written.

    Text is written as UTF-8. What is written is on the disk before it takes its name, so that a
    power cut leaves the old file or the new one, too. A link is followed; what is not a regular
    file (a pipe, /dev/stdout) is written to, not replaced.

    Raises:
        SynthError: the folder is missing or not writable, or the disk is full; it is no path.
    """
    write_together({as_path(path): contents})


def write_together(files: Mapping[Path, str | bytes]) -> None:
    """Write files as `write_atomically` does; none takes its name before all are on the disk.

    Raises:
        SynthError: one of them cannot be written.
    """
    ready: dict[str, Path] = {}
    try:
        for path, contents in files.items():
            data = contents.encode() if isinstance(contents, str) else contents
            with _refusing(path):
                if is_stream(path):
                    _write_plainly(path, data)
                else:
                    _write_beside(_place(path), data, ready)
        for temporary, path in ready.items():
            with _refusing(path):
                os.replace(temporary, path)
    except BaseException:
        for temporary in ready:
            Path(temporary).unlink(missing_ok=True)
        raise


def _write_beside(path: Path, data: bytes, ready: dict[str, Path]) -> None:
    """Write a temporary file beside a path, and add it to those that are ready to take its name."""
    handle, temporary = _temporary(path)
    ready[temporary] = path
    with os.fdopen(handle, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    umask = os.umask(0)
    os.umask(umask)
    os.chmod(temporary, 0o666 & ~umask)


def _temporary(path: Path) -> tuple[int, str]:
    """Create a file beside a path; return its descriptor and its name."""
    return tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:_PREFIX]}.")


@contextmanager
def _refusing(path: Path) -> Iterator[None]:
    """Make errors of the system a SynthError that names the path."""
    try:
        yield
    except OSError as error:
        raise SynthError(f"cannot write {path}: {error.strerror or error}") from None


def check_writable(path: Path) -> None:
    """Refuse an output path before work is spent on its contents.

    Raises:
        SynthError: it is `-`, or a folder; its folder does not exist, is not a folder, or takes no
            files.
    """
    reason = _why_not_writable(path)
    if reason is not None:
        raise SynthError(f"cannot write {path}: {reason}")


def check_outputs(*outputs: Path | None, inputs: Iterable[Path | str | None] = ()) -> None:
    """Refuse output paths, of those that are given, before work is spent on what they should hold.

    Args:
        inputs: the files that are read, which must not be lost.

    Raises:
        SynthError: one cannot be written, would replace an input, or is named twice.
    """
    taken = {_place(path): "is read" for path in inputs if path is not None}
    for path in outputs:
        if path is None:
            continue
        check_writable(path)
        place = _place(path)
        if place in taken and not is_stream(path):
            raise SynthError(f"{path} {taken[place]} by the same command; give another name")
        taken[place] = "is written"


def _place(path: Path | str) -> Path:
    """Resolve the links of a path; a loop of links is left as it is."""
    return Path(os.path.realpath(path))


def check_folder(option: str, path: Path | None) -> None:
    """Refuse a folder for files that cannot be made or written to, if the option has one.

    Raises:
        SynthError: it is `-` or a file, or in one, or nothing can be made there.
    """
    if path is None:
        return
    if path == _DASH:
        raise SynthError(f"{option} {path}: {_NO_STDOUT}; give a folder")
    if (reason := why_unreachable(path)) is not None:
        raise SynthError(f"{option} {path}: {reason}; give another folder")
    there = next((p for p in (path, *path.parents) if p.exists()), None)
    if there is None:
        return
    where = f"{option} {path}" if there == path else f"{option} {path}: {there}"
    if not there.is_dir():
        raise SynthError(f"{where} is a file; give a folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise SynthError(f"{where} may not be written to; give another folder")
    try:  # some file systems, such as /proc, refuse what the permissions allow
        os.rmdir(tempfile.mkdtemp(dir=there, prefix="."))
    except OSError as error:
        reason = error.strerror or str(error)
        raise SynthError(f"{where} cannot be written to: {reason}; give another folder") from None


def make_folder(path: Path) -> None:
    """Make a folder and those above it, if they are missing.

    Raises:
        SynthError: it cannot be made.
    """
    with _refusing(path):
        path.mkdir(parents=True, exist_ok=True)


def _why_not_writable(path: Path) -> str | None:
    """The reason why a file cannot be written; it is written beside its place and moved."""
    if path == _DASH:
        return f"{_NO_STDOUT}; give a file's name"
    reason = why_unreachable(path)
    if reason is not None:
        return reason
    folder = path.parent
    if path.is_dir():
        return "it is a folder; give a file's name"
    if is_stream(path):
        return None if os.access(path, os.W_OK) else "no permission to write to it"
    if not folder.is_dir():
        there = next((p for p in (folder, *folder.parents) if p.exists()), folder)
        if there.is_dir() or not there.exists():
            return f"folder {folder} is missing"
        return f"{there} is a file, not a folder"
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"no permission to write in folder {folder}"
    return _why_no_file_beside(_place(path))


def _why_no_file_beside(place: Path) -> str | None:
    """The reason why no file can be made there, as in /proc or on a disk without space."""
    try:
        handle, temporary = _temporary(place)
    except OSError as error:
        return f"no file can be made in folder {place.parent}: {error.strerror or error}"
    os.close(handle)
    os.unlink(temporary)
    return None


def _write_plainly(path: Path, data: bytes) -> None:
    """Write at the end of the file's contents, if this process has the file open already."""
    descriptor = descriptor_of(path)
    if descriptor is None:
        path.write_bytes(data)
        return
    sys.stdout.flush()
    with os.fdopen(os.dup(descriptor), "wb") as file:
        file.write(data)
