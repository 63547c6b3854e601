"""The JSON Schema (2020-12) of a file format, for editors and for programs in other languages.

It says which keys a file has and which values they take by themselves. Rules between fields, such
as that names differ, are checked when synth reads a file.
"""

from typing import Any

from synth.records.record import FileRecord

DIALECT = "https://json-schema.org/draft/2020-12/schema"

# pydantic's names of limits on values that are converted before they are checked.
_LIMITS = {"ge": "minimum", "le": "maximum", "gt": "exclusiveMinimum", "lt": "exclusiveMaximum"}


def schema_name(record: type[FileRecord]) -> str:
    """The name of the published schema: format and version, such as `synth-profile-2`."""
    return f"{record.FORMAT}-{record.VERSION}"


def schema_of(record: type[FileRecord]) -> dict[str, Any]:
    """Return the schema of a file; it accepts all versions that are read."""
    found = _cleaned(record.model_json_schema())
    head = {
        "format": {"const": record.FORMAT},
        "schema_version": {"type": "integer", "minimum": record.OLDEST, "maximum": record.VERSION},
    }
    others: dict[str, Any] = {key: {} for key in record.OF_FILE if key not in head}
    return {
        "$schema": DIALECT,
        "$id": f"{schema_name(record)}.json",
        "title": f"{record.FORMAT} file, version {record.VERSION}, made by {record.made_by()}",
        **{key: value for key, value in found.items() if key not in ("properties", "required")},
        "required": [*head, *found.get("required", [])],
        "properties": {**head, **others, **found["properties"]},
    }


def _cleaned(schema: Any, *, is_names: bool = False) -> Any:
    """Without titles and docstrings, and with limits under their standard names.

    Args:
        is_names: True for an object whose keys are names of fields or definitions.
    """
    if isinstance(schema, list):
        return [_cleaned(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if is_names:
        return {name: _cleaned(value) for name, value in schema.items()}
    dropped = {"title", *(("description",) if {"properties", "enum"} & schema.keys() else ())}
    return {
        _LIMITS.get(key, key): value
        if key in ("default", "const", "enum")
        else _cleaned(value, is_names=key in ("properties", "$defs"))
        for key, value in schema.items()
        if key not in dropped
    }
