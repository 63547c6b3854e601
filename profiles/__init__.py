"""Profiles that ship with synth, as JSON files; each says where and how it was measured."""

from importlib import resources
from pathlib import Path

from synth.errors import SynthError
from synth.estimates.named import estimated, is_named, similar_names
from synth.profile import Profile
from synth.suggestions import did_you_mean


def names() -> tuple[str, ...]:
    """The names of the shipped profiles, in alphabetical order."""
    files = resources.files(__package__).iterdir()
    return tuple(sorted(f.name.removesuffix(".json") for f in files if f.name.endswith(".json")))


def is_known(name: str) -> bool:
    """True if a name is that of a shipped profile, or of an estimated one."""
    return name in names() or is_named(name)


def load(name_or_path: str) -> Profile:
    """Read a profile file or a shipped profile, or compute an estimated one of this name.

    A path that exists wins over a shipped name.

    Raises:
        SynthError: none of them; the shipped names are listed.
    """
    if is_named(name_or_path) and not Path(name_or_path).is_file():
        return estimated(name_or_path)
    return Profile.load(find(name_or_path))


def find(name_or_path: str) -> Path:
    """Find a profile file: a path that exists wins over a shipped name.

    Raises:
        SynthError: neither, or a folder; the shipped names are listed.
    """
    path = Path(name_or_path)
    if path.is_file():
        return path
    if name_or_path in names():
        return Path(str(resources.files(__package__) / f"{name_or_path}.json"))
    if path.is_dir():
        raise SynthError(
            f"profile {name_or_path!r} is a folder; give a file in it that synth profile has "
            f"written, or the name of a shipped profile: {', '.join(names())}"
        )
    raise SynthError(
        f"profile {name_or_path!r} is neither a file nor shipped with synth; "
        f"shipped: {', '.join(names())}; estimated: MODEL-DEVICE-tpN, as llama3-70b-h100-tp8"
        f"{did_you_mean(name_or_path, (*names(), *similar_names(name_or_path)))}"
    )
