"""Reading a JSON file of a user's own."""

from pathlib import Path
from typing import Any

from synth.errors import SynthError
from synth.records.safe_read import parse_json, read_text


def read_object(path: Path, needed: str) -> dict[str, Any]:
    """Return the object of a JSON file.

    Args:
        needed: what it should hold, for the error.

    Raises:
        SynthError: it cannot be read, is no JSON, or holds no object.
    """
    try:
        found = parse_json(read_text(path, needed))
    except ValueError as error:
        raise SynthError(f"{path} is no JSON ({error}); give {needed}") from None
    if not isinstance(found, dict):
        raise SynthError(f"{path} holds no JSON object; give {needed}")
    return found
