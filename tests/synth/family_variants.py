"""The names of all published schedules that are compared."""

from synth.families import families
from synth.families._lib.options import spelled, variants


def family_variants() -> list[str]:
    """Return every family with each of its options."""
    return [
        spelled(family.name, family.options, options)
        for family in families().values()
        for options in variants(family.options)
    ]
