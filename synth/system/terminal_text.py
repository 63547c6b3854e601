"""Text from files and users for a terminal: without control characters, of bounded length."""

import re

# Control characters except tab and newline, line separators, and characters that reverse the
# direction of the following text. A terminal would obey them, or hide the real text.
_OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")

# A line break in quoted text, such as a file's name. Those of our own messages are followed by
# two spaces.
_FOREIGN_BREAK = re.compile(r"\n(?!  )")

# Characters of one line of a message, and lines of a message.
_LONGEST_LINE = 1_500
_MOST_LINES = 60

# A word of more characters, such as a path, is shortened to its beginning and its end.
_LONGEST_WORD = 300
_LONG_WORD = re.compile(rf"\S{{{_LONGEST_WORD + 1},}}")

# One part in this many of a shortened text is kept at its end, where messages give advice.
_END_SHARE = 4


def escaped(text: str) -> str:
    r"""Write characters that a terminal would obey as escapes, such as `\x1b`."""
    return _OBEYED.sub(_as_escape, text)


def as_message(text: str) -> str:
    """Escape a message, and shorten it if it is far too long to read.

    Lines after the first begin with two spaces; any other line break is escaped, too.
    """
    lines = escaped(_FOREIGN_BREAK.sub(_as_escape, text)).split("\n")
    if len(lines) > _MOST_LINES:
        lines = [*lines[:_MOST_LINES], f"… and {len(lines) - _MOST_LINES} more lines"]
    return "\n".join(map(_cut, lines))


def _cut(line: str) -> str:
    words = _LONG_WORD.sub(lambda word: _shortened(word[0], _LONGEST_WORD), line)
    return _shortened(words, _LONGEST_LINE)


def _shortened(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    end = most // _END_SHARE
    start = most - end
    return f"{text[:start]} … ({len(text) - most} characters left out) … {text[-end:]}"


def _as_escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")
