"""Options that do not go together."""

from collections.abc import Mapping

from synth.errors import SynthError


def refuse_beside(option: str, others: Mapping[str, tuple[bool, str]], why: str = "") -> None:
    """Refuse the first of some options that is given although it does not go with an option.

    Args:
        option: with its value, as it is given: `--versions 2bw`.
        others: likewise; true if it is given, and the way out.
        why: explains the option, within the sentence.

    Raises:
        SynthError: one of the others is given.
    """
    for other, (is_given, way) in others.items():
        if is_given:
            explained = f"{option}, {why}," if why else option
            raise SynthError(
                f"{other} and {explained} do not go together; {way}; or leave "
                f"{option.split()[0]} out"
            )
