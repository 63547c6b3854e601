"""Many dictionaries that seldom change, compared together, which takes a few ns for each entry."""

import operator
from collections import defaultdict
from collections.abc import Sequence
from itertools import chain
from typing import Any

from .places import Entries, StatePlace


class SteadyEntries:
    """Some of a list of places, all of them dictionaries."""

    def __init__(self, places: Sequence[StatePlace], indices: Sequence[int]) -> None:
        """Take what they hold now; `indices` are those of the places."""
        self.indices = indices
        self._tables: list[dict[Any, Any]] = [places[i].container for i in indices]  # type: ignore
        # The attributes of modules are told apart by their values.
        self._keyed = [places[i].container for i in indices if places[i].left_out is None]  # type: ignore
        self._keys = tuple(chain.from_iterable(self._keyed))
        self._values = tuple(chain.from_iterable(map(dict.values, self._tables)))

    def differ(self) -> bool:
        """True if one of them holds another object, or has another key."""
        return (
            sum(map(len, self._tables)) != len(self._values)
            or not all(map(operator.is_, chain.from_iterable(self._keyed), self._keys))
            or not all(
                map(
                    operator.is_,
                    chain.from_iterable(map(dict.values, self._tables)),
                    self._values,
                )
            )
        )


def can_be_steady(place: StatePlace) -> bool:
    """True for a place whose entries can be compared together with others'."""
    return isinstance(place, Entries) and type(place.container) in (dict, defaultdict)
