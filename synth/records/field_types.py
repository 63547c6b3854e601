"""Types of fields in the JSON files: whole numbers, times, and texts of one line."""

import unicodedata
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field

from synth.units import MOST_US, shown

TimeUs = Annotated[float, Field(ge=0, le=MOST_US)]


def _number(given: object) -> object:
    """Refuse booleans and texts as a number of bytes; 80e9 is one."""
    if isinstance(given, float) and given.is_integer():
        return int(given)
    if isinstance(given, bool | str | float):
        raise ValueError("Input should be a valid integer")
    return given


Whole = Annotated[int, BeforeValidator(_number)]

# As many ranks, ops or micro-batches as a token has digits for.
StrictCount = Annotated[int, Field(ge=0, lt=10**9, strict=True)]

# A type of its own, because before 2.12 pydantic gives a `StrictCount = Field(gt=0)`, which is
# required, the default of another StrictCount of the record.
PositiveCount = Annotated[int, Field(gt=0, lt=10**9, strict=True)]

# Unicode categories: control characters, surrogates, line and paragraph separators.
_UNSHOWN = ("Cc", "Cs", "Zl", "Zp")


def check_plain(text: str) -> str:
    """Text that can be shown: without control characters and halves of characters."""
    for character in text:
        if unicodedata.category(character) in _UNSHOWN:
            raise ValueError(
                f"{shown(text)} has U+{ord(character):04X} in it, which cannot be shown; needed: "
                f"plain text in one line"
            )
    return text


PlainText = Annotated[str, AfterValidator(check_plain)]
