"""The fingerprints of a plan file, as a whole and part by part, and of a schedule: sha256.

It detects damage and mistakes: a figure changed by hand, a file assembled from two. It does not
authenticate, because an editor of the file can also edit its fingerprint.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from synth.errors import SynthError
from synth.records.record import Record
from synth.schedule.files.program_text import program_text
from synth.schedule.model import Schedule

# The key of the fingerprint in the file.
KEY = "fingerprint"

# Keys that are not covered: they name the kind of file and say nothing of the plan.
_NOT_COVERED = ("format", "schema_version", KEY)

# The most changed fields that a message names.
_MOST_NAMED = 4

# Hexadecimal digits of the hash of a part, which only has to tell versions of one part apart.
_PART_DIGITS = 12


class Fingerprint(Record):
    """The hash of a whole file, and the hashes of its parts by their path in the file."""

    sha256: str
    parts: dict[str, str]

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> "Fingerprint":
        """Hash the parsed JSON of a file."""
        covered = {key: value for key, value in data.items() if key not in _NOT_COVERED}
        parts = {path: _hash(value)[:_PART_DIGITS] for path, value in _parts(covered)}
        return cls(sha256=_hash(covered), parts=parts)

    def changed_since(self, made: "Fingerprint") -> list[str]:
        """Name the parts that differ from those of the fingerprint that was made with the file."""
        if self == made:
            return []
        paths = [*self.parts, *(path for path in made.parts if path not in self.parts)]
        changed = [path for path in paths if self.parts.get(path) != made.parts.get(path)]
        return changed or [KEY]


def stored_fingerprint(data: Mapping[str, Any]) -> Fingerprint | None:
    """Return the fingerprint in the parsed JSON of a file; None in files older than version 3.

    Raises:
        SynthError: the entry is malformed.
    """
    if KEY not in data:
        return None
    try:
        return Fingerprint.model_validate(data[KEY])
    except ValidationError:
        raise SynthError(
            f"{KEY!r} in the file is not a fingerprint: it needs sha256 and parts; make the file "
            f"again"
        ) from None


def misfit(data: Mapping[str, Any]) -> str | None:
    """Return a message if the parsed JSON of a file does not fit the fingerprint in it.

    Returns:
        None if it fits, or if the file has no fingerprint.

    Raises:
        SynthError: the fingerprint is malformed.
    """
    stored = stored_fingerprint(data)
    changed = [] if stored is None else Fingerprint.of(data).changed_since(stored)
    if not changed:
        return None
    named = ", ".join(changed[:_MOST_NAMED])
    more = f" and {len(changed) - _MOST_NAMED} more" if len(changed) > _MOST_NAMED else ""
    return (
        f"the file was changed after it was written: its fingerprint does not fit {named}{more}; "
        f"make it again with `synth solve`"
    )


def _parts(data: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the entries of a file by path; an entry that is an object gives its entries instead."""
    for key, value in data.items():
        if isinstance(value, dict):
            for name, inner in value.items():
                yield f"{key}.{name}", inner
        else:
            yield key, value


def _hash(value: object) -> str:
    """Hash canonical JSON: sorted keys, no spaces, ASCII."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def schedule_fingerprint(schedule: Schedule) -> str:
    """Hash everything in a schedule except its name, as 16 hexadecimal digits."""
    rules: tuple[object, ...] = (
        schedule.placement,
        schedule.num_micro_batches,
        schedule.buffering,
        schedule.eager,
    )
    if schedule.placement.backward_ranks is not None:
        rules = (*rules, schedule.placement.backward_ranks)
    if schedule.weights is not None:
        rules = (*rules, schedule.weights)
    programs = (program_text(ops, schedule.overlapped) for ops in schedule.programs)
    lines = [repr(rules), *programs]
    if schedule.versions is not None:
        lines.append(repr(schedule.versions))
    if schedule.vocabulary:
        lines.append(f"vocabulary {schedule.vocabulary}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
