"""A validator of the part of JSON Schema that the published schemas use."""

import re
from collections.abc import Iterator
from typing import Any

_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
_SAID = {"$schema", "$id", "$defs", "title", "description", "default", "if", "items", "required"}


def mistakes(schema: dict[str, Any], data: Any) -> list[str]:
    """List the parts of the data that do not fit the schema, by path."""
    return list(_mistakes(schema, data, schema, "$"))


def _mistakes(schema: dict[str, Any], data: Any, root: Any, path: str) -> Iterator[str]:
    for key, wanted in schema.items():
        if key == "$ref":
            inner = root["$defs"][wanted.removeprefix("#/$defs/")]
            yield from _mistakes(inner, data, root, path)
        elif key == "anyOf":
            found = [list(_mistakes(each, data, root, path)) for each in wanted]
            if all(found):
                yield min(found, key=len)[0]
        elif key == "properties":
            yield from _of_object(schema, data, root, path)
        elif key == "additionalProperties":
            if isinstance(wanted, dict) and isinstance(data, dict):
                for name, value in data.items():
                    yield from _mistakes(wanted, value, root, f"{path}.{name}")
        elif key == "propertyNames":
            for name in data if isinstance(data, dict) else ():
                yield from _mistakes(wanted, name, root, f"{path}, key {name}")
        elif key == "patternProperties":
            yield from _of_patterns(wanted, data, root, path)
        elif key == "prefixItems":
            for n, (inner, value) in enumerate(zip(wanted, data, strict=False)):
                yield from _mistakes(inner, value, root, f"{path}[{n}]")
        elif not _holds(key, wanted, data):
            yield f"{path}: {key} {wanted}, given {data!r:.60}"
    if isinstance(data, list) and "items" in schema:
        for n, value in enumerate(data[len(schema.get("prefixItems", ())) :]):
            yield from _mistakes(schema["items"], value, root, f"{path}[{n}]")


def _of_object(schema: dict[str, Any], data: Any, root: Any, path: str) -> Iterator[str]:
    if not isinstance(data, dict):
        return
    for name in schema.get("required", ()):
        if name not in data:
            yield f"{path}: {name} is missing"
    for name, value in data.items():
        if name in schema["properties"]:
            yield from _mistakes(schema["properties"][name], value, root, f"{path}.{name}")
        elif schema.get("additionalProperties") is False:
            yield f"{path}: {name} is unknown"


def _of_patterns(wanted: dict[str, Any], data: Any, root: Any, path: str) -> Iterator[str]:
    for pattern, inner in wanted.items():
        for name, value in data.items() if isinstance(data, dict) else ():
            if re.search(pattern, name):
                yield from _mistakes(inner, value, root, f"{path}.{name}")


def _holds(key: str, wanted: Any, data: Any) -> bool:
    if key in _SAID:
        return True
    is_number = isinstance(data, int | float) and not isinstance(data, bool)
    match key:
        case "type":
            is_bool = isinstance(data, bool)
            return isinstance(data, _TYPES[wanted]) and is_bool == (wanted == "boolean")
        case "const":
            return bool(data == wanted)
        case "enum":
            return data in wanted
        case "minimum":
            return not is_number or data >= wanted
        case "maximum":
            return not is_number or data <= wanted
        case "exclusiveMinimum":
            return not is_number or data > wanted
        case "exclusiveMaximum":
            return not is_number or data < wanted
        case "minItems":
            return not isinstance(data, list) or len(data) >= wanted
        case "maxItems":
            return not isinstance(data, list) or len(data) <= wanted
        case "pattern":
            return not isinstance(data, str) or re.search(wanted, data) is not None
    raise NotImplementedError(key)
