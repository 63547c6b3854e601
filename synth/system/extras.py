"""Packages that only a part of synth needs, and the error if one is missing."""

from importlib.util import find_spec

from synth.errors import SynthError

_DISTRIBUTION = "synth-pipeline"

# The packages that the extra `torch` installs for profiling, running and emulating.
TORCH = ("torch", "safetensors")


class MissingExtra(SynthError, ImportError):
    """A package is not installed that an extra of this distribution installs."""


def missing_of(packages: tuple[str, ...]) -> list[str]:
    """Return those of some packages, by import name, that are not installed."""
    return [name for name in packages if find_spec(name) is None]


def require(extra: str, packages: tuple[str, ...], purpose: str, way_out: str = "") -> None:
    """Check that the packages of an extra are installed.

    Args:
        extra: its name.
        packages: import names of what it installs.
        purpose: what needs them, as the beginning of a sentence up to "need".
        way_out: another way, if there is one, as the end of a sentence.

    Raises:
        MissingExtra: one is not installed; says how to install it.
    """
    missing = missing_of(packages)
    if missing:
        one = len(missing) == 1
        raise MissingExtra(
            f"{purpose} the package{'' if one else 's'} {' and '.join(missing)}, which "
            f"{'is' if one else 'are'} not installed; "
            f"pip install '{_DISTRIBUTION}[{extra}]'{way_out}"
        )
