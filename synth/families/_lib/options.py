"""The options of a family, and their written form after the family's name.

    interleaved:3            a whole number: the number of rounds
    chimera:doubling         a word: one of several choices, the default of which is not written
    interleaved:3,group=5    any other number, with its name
    pipedream:2-1            the number of ranks of each stage

The spelling is the same in `generate`, on the command line and in a schedule's name. The name
always contains the rounds, and other options unless they have their default.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from synth.errors import SynthError

ROUNDS = "rounds"

Options = Mapping[str, int | str]


@dataclass(frozen=True)
class Count:
    """A number of at least `least`; `default` is used if none is given, and may be smaller."""

    name: str
    default: int
    least: int = 1

    def __str__(self) -> str:
        written = "a number of rounds" if self.name == ROUNDS else f"{self.name}=a number"
        return f"{written} from {self.least}"


@dataclass(frozen=True)
class ChoiceOption:
    """One of several words, the first of which is the default."""

    name: str
    words: tuple[str, ...]
    untried: tuple[str, ...] = ()

    @property
    def default(self) -> str:
        """The word that need not be written."""
        return self.words[0]

    def __str__(self) -> str:
        return " or ".join(self.words)


@dataclass(frozen=True)
class Replicas:
    """The number of ranks of each stage, or one for every stage; its value names a placement."""

    name: str = "replicas"
    default: str = "linear"

    def __str__(self) -> str:
        return "the number of ranks of each stage (2-1) or of every stage (2)"

    def parse(self, part: str) -> str | None:
        """Return the placement; None if the text is no such number."""
        return f"{_IN_TURN}{part}" if re.fullmatch(_RANKS_OF_STAGES, part) else None

    def written(self, value: str) -> str:
        """Return the text of a placement that is not the default."""
        return value.removeprefix(_IN_TURN)


_IN_TURN = "round-robin:"
_RANKS_OF_STAGES = r"[1-9]\d{0,4}(-[1-9]\d{0,4})*"

Option = Count | ChoiceOption | Replicas

# The number of ranks of each stage, on the placement on which they take micro-batches in turn.
REPLICAS = Replicas()

# Copies of a stage add up its gradients as soon as they are complete, or after all computing.
SYNC = ChoiceOption("sync", ("eager", "late-sync"), untried=("late-sync",))

# F and BW of two micro-batches run one after the other, or at once.
PAIRS = ChoiceOption("pairs", ("apart", "overlap"), untried=("overlap",))


def rounds(default: int, least: int = 1) -> Count:
    """The option for the number of rounds; every rank holds one stage of each, or two on waves."""
    return Count(ROUNDS, default, least)


def defaults(options: Sequence[Option]) -> dict[str, int | str]:
    return {option.name: option.default for option in options}


def parse(family: str, options: Sequence[Option], text: str | None) -> dict[str, int | str]:
    """Parse the options after a family's name; None: there are none, and no colon.

    Raises:
        SynthError: a part is not an option of the family, is given twice, or is below its minimum.
    """
    chosen: dict[str, int | str] = {}
    for part in () if text is None else text.split(","):
        name, value = _parse_part(options, part) or ("", "")
        if not name or name in chosen:
            takes = "; ".join(map(str, options)) or "nothing"
            what = f"has {name} twice" if name else "is not understood"
            raise SynthError(
                f"family '{family}:{text}' {what}; {family} takes {takes} after a colon"
            )
        chosen[name] = value
    for option in options:
        given = chosen.get(option.name)
        if isinstance(option, Count) and isinstance(given, int) and given < option.least:
            what = "the number of rounds" if option.name == ROUNDS else option.name
            raise SynthError(
                f"family '{family}:{text}' is not defined: {what} is {given}; "
                f"{family} needs {option.least} or more"
            )
    return defaults(options) | chosen


def _parse_part(options: Sequence[Option], part: str) -> tuple[str, int | str] | None:
    """Return the option's name and value, if the family has such an option."""
    name, equals, number = part.rpartition("=")
    wanted = name if equals else ROUNDS
    for option in options:
        if isinstance(option, ChoiceOption) and part in option.words:
            return option.name, part
        if isinstance(option, Replicas) and (where := option.parse(part)) is not None:
            return option.name, where
        is_number = isinstance(option, Count) and re.fullmatch(r"\d{1,4}", number)
        if is_number and option.name == wanted and not (equals and name == ROUNDS):
            return option.name, int(number)
    return None


def spelled(family: str, options: Sequence[Option], chosen: Options) -> str:
    """The name of a family with its options, as `parse` reads it."""
    parts = []
    for option in options:
        value = chosen[option.name]
        if option.name == ROUNDS:
            parts.append(str(value))
        elif value != option.default:
            parts.append(_spelled(option, value))
    return f"{family}:{','.join(parts)}" if parts else family


def _spelled(option: Option, value: int | str) -> str:
    """The written form of a value that is not the default."""
    if isinstance(option, Replicas):
        return option.written(str(value))
    return str(value) if isinstance(option, ChoiceOption) else f"{option.name}={value}"


def variants(options: Sequence[Option], most_rounds: int = 0) -> Iterator[dict[str, int | str]]:
    """The choices to be compared: all words but the untried ones, and rounds up to a number.

    Args:
        options: the family's options.
        most_rounds: the largest number of rounds; None: the default number alone.
    """
    values: list[Sequence[int | str]] = []
    for option in options:
        if isinstance(option, ChoiceOption):
            values.append([word for word in option.words if word not in option.untried])
        elif isinstance(option, Count) and option.name == ROUNDS and most_rounds:
            values.append(range(option.least, most_rounds + 1))
        else:
            values.append((option.default,))
    for chosen in product(*values):
        yield dict(zip((option.name for option in options), chosen, strict=True))
