"""Valid files made invalid, or valid in another way: by structure, by ops and by bytes."""

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

# Wrong nearly everywhere, and at the edges of what numbers and texts can be.
_NUMBERS = (0, -1, 1, 2, 10**9, 2**31, 2**53, 2**62, 2**63, 10**40, 10**99, 1.5, 1e308, -1e-320)
_TEXTS = ("", "x", "\x1b[31m", "\ud800", "é" * 300, "F0.0 F0.0", "STEP0", "act(0, 0)", "nan", "1")
_ODD: tuple[Any, ...] = (*_NUMBERS, *_TEXTS, None, True, [], [[]], {}, {"a": 1}, [0] * 5)

Place = tuple[Any, int | str]


def places(data: Any) -> Iterator[Place]:
    """Every value of parsed JSON, as what holds it and the key or index there."""
    entries = data.items() if isinstance(data, dict) else enumerate(data)
    for key, value in list(entries):
        yield data, key
        if isinstance(value, dict | list):
            yield from places(value)


def restructured(draw: random.Random, data: Any) -> Any:
    """A copy of parsed JSON with one to three changes somewhere."""
    changed = copy.deepcopy(data)
    for _ in range(draw.choice((1, 1, 2, 3))):
        everywhere = list(places(changed)) if isinstance(changed, dict | list) else []
        if everywhere:
            _change(draw, everywhere)
    return changed


def _change(draw: random.Random, everywhere: list[Place]) -> None:
    holder, key = draw.choice(everywhere)
    value = holder[key]
    match draw.randrange(8):
        case 0:
            del holder[key]
        case 1:
            other, other_key = draw.choice(everywhere)
            holder[key], other[other_key] = copy.deepcopy(other[other_key]), copy.deepcopy(value)
        case 2:
            holder[key] = copy.deepcopy(draw.choice(_ODD))
        case 3 if isinstance(holder, list):
            holder.insert(draw.randint(0, len(holder)), copy.deepcopy(value))
        case 4 if isinstance(holder, list):
            holder.insert(draw.randint(0, len(holder) - 1), holder.pop(int(key)))
        case 5 if isinstance(holder, list) and len(holder) > 1:
            other_key = draw.randrange(len(holder))
            holder[int(key)], holder[other_key] = holder[other_key], value
        case _:
            holder[key] = _altered(draw, value)


def _altered(draw: random.Random, value: Any) -> Any:
    """A value much like it."""
    if isinstance(value, bool) or value is None:
        return draw.choice((True, False, None, 0, "null"))
    if isinstance(value, int | float):
        return draw.choice((value + 1, value - 1, value * 2, value // 2, -value, float(value)))
    if isinstance(value, str):
        return retold(draw, value)
    return copy.deepcopy(draw.choice(_ODD))


def retold(draw: random.Random, text: str) -> str:
    """Exchange, lose, double or alter a word; a character where there is only one word."""
    by_words = " " in text and draw.random() < 0.9
    parts = text.split(" ") if by_words else list(text)
    if not parts:
        return "x"
    place, other = draw.randrange(len(parts)), draw.randrange(len(parts))
    match draw.randrange(5):
        case 0:
            parts[place], parts[other] = parts[other], parts[place]
        case 1:
            del parts[place]
        case 2:
            parts.insert(other, parts[place])
        case 3:
            parts.insert(other, parts.pop(place))
        case _:
            parts[place] = "".join(
                draw.choice("0123456789") if c.isdigit() and draw.random() < 0.5 else c
                for c in parts[place]
            )
    return (" " if by_words else "").join(parts)


def corrupted(draw: random.Random, content: bytes) -> bytes:
    """A few bytes flipped, lost, doubled or made up, or the end cut off."""
    changed = bytearray(content)
    for _ in range(draw.choice((1, 1, 2, 5))):
        place = draw.randrange(len(changed) + 1)
        length = draw.choice((1, 1, 2, 8, 100))
        match draw.randrange(5):
            case 0 if place < len(changed):
                changed[place] ^= 1 << draw.randrange(8)
            case 1:
                del changed[place : place + length]
            case 2:
                changed[place:place] = changed[place : place + length]
            case 3:
                changed[place : place + length] = draw.randbytes(length)
            case 4 if draw.random() < 0.2:
                del changed[place:]
    return bytes(changed)


def changed_file(draw: random.Random, content: bytes, is_json: bool) -> bytes:
    """A file changed in either way."""
    if draw.random() < 0.3:
        return corrupted(draw, content)
    if is_json:
        return json.dumps(restructured(draw, json.loads(content))).encode()
    lines = content.decode().split("\n")
    place = draw.randrange(len(lines))
    lines[place] = retold(draw, lines[place].replace(",", " ")).replace(" ", ",")
    if draw.random() < 0.2:
        other = draw.randrange(len(lines))
        lines[place], lines[other] = lines[other], lines[place]
    return "\n".join(lines).encode("utf-8", "surrogatepass")
