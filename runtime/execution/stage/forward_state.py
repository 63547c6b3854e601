"""State that forwards change beside buffers: R finds it as F did, and leaves it as it was.

Random generators other than torch's global ones, and counters: attributes, globals, entries of
lists and dictionaries, plain tensors. What a forward adds to a list or a dictionary is a log or a
cache and no state: what R adds stays there.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from ...module_state import find_places
from ...state_places import (
    MISSING,
    ArrayValues,
    Attribute,
    Contents,
    Generator,
    Progress,
    StateItem,
    StatePlace,
    TensorValues,
    is_other,
    is_plain,
)

# A larger tensor that each forward makes anew is an activation.
_MOST_NUMBERS = 1 << 16

_NAMES: dict[type, str] = {
    Generator: "a random generator other than torch's own",
    TensorValues: "a tensor that is no buffer",
    ArrayValues: "an array",
    Contents: "a list",
}

_Taken = list[tuple[StatePlace, Any]]


@dataclass
class FoundByF:
    """The values of places as an F found them; empty if it changes none."""

    values: _Taken = field(default_factory=list)

    @property
    def names(self) -> str:
        """Name them, for a message."""
        names = (_NAMES.get(type(p)) or f"{_key(p)!r}" for p, _ in self.values)
        return ", ".join(dict.fromkeys(names))

    @contextmanager
    def again(self) -> Iterator[None]:
        """Put them back within the block; afterwards restore what was there."""
        interrupted = [(place, place.take()) for place, _ in self.values]
        for place, value in self.values:
            place.put(value)
        try:
            yield
        finally:
            for place, value in interrupted:
                place.put(value)


class ForwardState:
    """The state that the forwards of a module change, found by observing a forward.

    The first forward with each combination of `training` flags is observed. Generators that the
    code can reach are known before; they may be used in some forwards only.
    """

    def __init__(self, module: nn.Module, *others: Any) -> None:
        """Watch a module and functions beside it, such as the loss."""
        self._module, self._others = module, others
        self._generators: dict[StatePlace, None] = {}
        self._changed: list[StatePlace] = []
        self._watched_modes: set[tuple[bool, ...]] = set()

    @contextmanager
    def recorded(self, *given: Any) -> Iterator[FoundByF]:
        """Observe the F in the block, given some arguments; afterwards there is what R needs."""
        found = FoundByF()
        mode = tuple(part.training for part in self._module.modules())
        is_first = mode not in self._watched_modes
        places = find_places(self._module, *self._others, *given) if is_first else []
        self._generators |= {place: None for place in places if isinstance(place, Generator)}
        known = _taken(self._changed)
        drawn = _taken(self._generators)
        before = _taken(place for place in places if not isinstance(place, Generator))
        yield found
        self._watched_modes.add(mode)
        used = [(place, state) for place, state in drawn if place.differs(state)]
        new = [change for place, value in before for change in _changes(place, value)]
        self._changed += [place for place, _ in new]
        found.values += [*known, *new, *used]


def _taken(places: Iterable[StatePlace]) -> _Taken:
    return [(place, place.take()) for place in places]


def _changes(place: StatePlace, before: Any) -> _Taken:
    """Return the parts of a place that a forward has changed, and their values before."""
    if isinstance(place, Contents):
        return [] if place.is_foreign else _changes_within(place, before)
    if isinstance(place, Progress) and place.differs(before):
        place.put(before)  # an error, which says so
    if isinstance(place, TensorValues | ArrayValues | Progress):
        return [(place, before)] if place.differs(before) else []
    assert isinstance(place, StateItem | Attribute)
    now = place.take()
    is_changed = is_other(now, before) and _is_state(now) and _is_state(before)
    return [(place, before)] if is_changed else []


def _changes_within(contents: Contents, before: list[Any]) -> _Taken:
    container = contents.container
    if isinstance(container, dict):
        entries = [(key, value) for key, value in before]
        old = dict(before)
        entries += [(key, MISSING) for key, now in container.items() if key not in old]
    elif isinstance(container, set) or len(container) > len(before):
        return []
    elif len(container) < len(before):
        return [(contents, before)]
    else:
        entries = list(enumerate(before))
    items = [(StateItem(container, key), value) for key, value in entries]
    return [change for item, value in items for change in _changes(item, value)]


def _is_state(value: Any) -> bool:
    """True for numbers and small tensors; a tensor or module that replaces another is none."""
    if isinstance(value, Tensor):
        return value.numel() <= _MOST_NUMBERS
    return value is MISSING or is_plain(value)


def _key(place: StatePlace) -> Any:
    return place.key if isinstance(place, StateItem) else getattr(place, "name", place)
