"""Messages of communication errors."""

import re


def describe_failure(error: BaseException) -> str:
    """Return an error's message, without the library's source paths and advice."""
    text = re.sub(r"\[/[^\]]*\]\s*", "", str(error))
    return text.split(" This is typically caused", 1)[0].split(" This may be", 1)[0].strip(" .")
