"""Names of families in earlier versions, which files and commands may still have.

`zero:v` is now `zero3:v`, `zero:v,zero-2` is `zero2:v`, and `zero:v,zero-1` is `zero1:v`. The last
two also took an `ahead`, which had no effect and is dropped.
"""

_STAGES = {"zero-1": "zero1", "zero-2": "zero2", "zero-3": "zero3"}


def current_name(name: str) -> str:
    """Return the name that a family has now; other names are returned as they are."""
    base, _, behind = name.partition(":")
    if base != "zero":
        return name
    parts = behind.split(",") if behind else []
    named = [part for part in parts if part in _STAGES]
    family = _STAGES[named[0]] if named else "zero3"
    kept = [
        part
        for part in parts
        if part not in named[:1] and (family == "zero3" or not part.startswith("ahead="))
    ]
    return f"{family}:{','.join(kept)}" if kept else family
