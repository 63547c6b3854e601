"""Profiles that ship with synth, as JSON files; each says where and how it was measured."""

from importlib import resources
from pathlib import Path

from synth.errors import SynthError


def names() -> tuple[str, ...]:
    """The names of the shipped profiles, in alphabetical order."""
    files = resources.files(__package__).iterdir()
    return tuple(sorted(f.name.removesuffix(".json") for f in files if f.name.endswith(".json")))


def find(name_or_path: str) -> Path:
    """Find a profile file: a path that exists wins over a shipped name.

    Raises:
        SynthError: neither; the shipped names are listed.
    """
    path = Path(name_or_path)
    if path.is_file():
        return path
    if name_or_path in names():
        return Path(str(resources.files(__package__) / f"{name_or_path}.json"))
    raise SynthError(
        f"profile {name_or_path!r} is neither a file nor shipped with synth; "
        f"shipped: {', '.join(names())}"
    )
