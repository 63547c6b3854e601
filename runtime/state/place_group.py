"""The places that a walk over state finds, and comparisons of them with their last values."""

import operator
from array import array
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from .array_values import ArrayValues
from .kinds import place_of
from .places import Entries, Items, StatePlace
from .positions import Generator
from .tensor_numbers import History, Holder, Numbers, TensorNumbers, Watchfulness, storage_key
from .walk import ReachedObject, StateWalk, Way

# So many places are compared together: if one of them differs, each of them is compared.
_NUM_TOGETHER = 64


class KeptValue(NamedTuple):
    """A place, how it is reached, and a value of it."""

    place: StatePlace
    reached: ReachedObject
    value: Any


class PlaceGroup:
    """The places that one walk has found.

    Attributes:
        seen: the objects walked over, by id.
        reached: how each of them is reached.
        values: the last known value of each.
        numbers: by storage, the index of the place that its tensors have.
        arrays: by id, the index of the place that an array has.
        aliases: further tensors on storages of an earlier group, and what holds them.
        foreign: containers of library objects, and what they held.
        is_complete: False if some objects have been left out, because there are too many.
    """

    def __init__(
        self,
        walk: StateWalk,
        watchfulness: Watchfulness,
        *,
        left_out: Collection[int | None] = (),
        base: "PlaceGroup | None" = None,
        previous: Sequence["PlaceGroup"] = (),
    ) -> None:
        """Walk, and take the values; `previous` has copies of tensors that may serve again."""
        self.places: list[StatePlace] = []
        self.reached: list[ReachedObject] = []
        self.aliases: list[tuple[TensorNumbers, Holder]] = []
        self.foreign: list[tuple[Entries | Items, Any]] = []
        self.numbers: dict[int, int] = {}
        self.arrays: dict[int, int] = {}
        for reached in walk:
            if isinstance(reached.value, Tensor):
                self._add_tensor(reached, watchfulness, left_out, base, previous)
            elif isinstance(reached.value, np.ndarray | bytearray | array):
                if not reached.is_foreign:
                    self._add_array(reached, watchfulness, previous)
            elif (place := place_of(reached)) is not None:
                if not reached.is_foreign or isinstance(place, Generator):
                    self._add(place, reached)
                elif isinstance(place, Entries | Items):
                    self.foreign.append((place, place.take()))
        # A group beside another one is short-lived, and keeps no activations alive.
        self.seen, self.is_complete = walk.seen if base is None else {}, walk.is_complete
        # Small tensors first, so that large tables leave room for the copies of them.
        order = sorted(range(len(self.places)), key=lambda i: _size_of(self.places[i]))
        taken = {index: self.places[index].take() for index in order}
        self.values = [taken[index] for index in range(len(self.places))]

    def _add_tensor(
        self,
        reached: ReachedObject,
        watchfulness: Watchfulness,
        left_out: Collection[int | None],
        base: "PlaceGroup | None",
        previous: Sequence["PlaceGroup"],
    ) -> None:
        key, holder = _watched_storage(reached), (reached.way.owner, reached.value)
        if key is None or key in left_out:
            return
        if base is not None and key in base.numbers:
            self.aliases.append((base.numbers_on(key), holder))
            return
        if key not in self.numbers:
            old = next((group for group in previous if key in group.numbers), None)
            self.numbers[key] = len(self.places)
            self._add(
                TensorNumbers(watchfulness, None if old is None else old.last_of(key)), reached
            )
        self.numbers_on(key).add(holder, is_buffer=_is_buffer(reached.way))

    def _add_array(
        self, reached: ReachedObject, watchfulness: Watchfulness, previous: Sequence["PlaceGroup"]
    ) -> None:
        own = reached.value
        if isinstance(own, np.ndarray) and not own.flags.writeable:
            return
        old = next((group for group in previous if id(own) in group.arrays), None)
        self.arrays[id(own)] = len(self.places)
        last = None if old is None else old.values[old.arrays[id(own)]]
        self._add(ArrayValues(own, watchfulness, last), reached)

    def numbers_on(self, key: int) -> TensorNumbers:
        """The place of the tensors on a storage."""
        place = self.places[self.numbers[key]]
        assert isinstance(place, TensorNumbers)
        return place

    def last_of(self, key: int) -> tuple[History, Numbers]:
        """Return the history of a storage and its numbers in this picture."""
        return self.numbers_on(key).history, self.values[self.numbers[key]]

    def _add(self, place: StatePlace, reached: ReachedObject) -> None:
        self.places.append(place)
        self.reached.append(reached)

    def kept(self) -> Iterator[KeptValue]:
        """Its places with their values."""
        return map(KeptValue, self.places, self.reached, self.values)


class ComparedPlaces:
    """Places of a group that are compared with their last known values.

    Attributes:
        single: the indices of those that are compared one by one.
    """

    def __init__(self, group: PlaceGroup, indices: Sequence[int], single: Sequence[int]) -> None:
        """Compare some places together as far as that can be done, and others one by one."""
        steady = [i for i in indices if can_be_steady(group.places[i])]
        self.single = [*single, *sorted({*indices}.difference(steady))]
        self._together = [
            SteadyEntries(group.places, steady[start : start + _NUM_TOGETHER])
            for start in range(0, len(steady), _NUM_TOGETHER)
        ]

    def compare(self, group: PlaceGroup) -> list[int]:
        """Return the indices of the places that differ, which are single from now on."""
        places, values = group.places, group.values
        changed = [i for i in self.single if places[i].differs(values[i])]
        for number, together in enumerate(self._together):
            if together.differ():
                found = [i for i in together.indices if places[i].differs(values[i])]
                left = [i for i in together.indices if i not in found]
                self._together[number] = SteadyEntries(places, left)
                self.single += found
                changed += found
        return changed


def _watched_storage(reached: ReachedObject) -> int | None:
    tensor = reached.value
    return None if reached.is_foreign or tensor.requires_grad else storage_key(tensor)


def _is_buffer(way: Way) -> bool:
    return way.before is not None and way.before.key == "_buffers"


def _size_of(place: StatePlace) -> int:
    return place.num_bytes if isinstance(place, TensorNumbers | ArrayValues) else 0


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
                map(operator.is_, chain.from_iterable(map(dict.values, self._tables)), self._values)
            )
        )


def can_be_steady(place: StatePlace) -> bool:
    """True for a place whose entries can be compared together with others'."""
    return isinstance(place, Entries) and type(place.container) in (dict, defaultdict)
