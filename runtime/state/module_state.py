"""The state that code of modules and functions can change, watched from forward to forward.

A `StatePicture` has the value of every such place at one time. Pictures share what has not changed.
Each one costs a comparison of all places by identity; what an entry holds that has changed is
walked again, so that new objects are found.
"""

from array import array
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from synth.errors import SynthError

from .array_values import ArrayValues
from .kinds import place_of
from .places import (
    Attribute,
    ClassAttributes,
    Entries,
    Generator,
    Items,
    Length,
    Progress,
    StateItem,
    StatePlace,
    is_plain,
)
from .steady_entries import SteadyEntries, can_be_steady
from .tensor_numbers import (
    FEW_BYTES,
    History,
    Holder,
    Numbers,
    TensorNumbers,
    Watchfulness,
    num_bytes_of,
    storage_key,
    uncopied,
)
from .walk import Gone, ReachedObject, StateWalk, Way, root

# A holder of which more entries change is walked again as a whole.
_MOST_KEYS = 16
# So many places are compared together: if one of them differs, each of them is compared.
_NUM_TOGETHER = 64


class KeptValue(NamedTuple):
    """A place, how it is reached, and a value of it."""

    place: StatePlace
    reached: ReachedObject
    value: Any


class _Group:
    """The places that one walk has found.

    Attributes:
        seen: the objects walked over, by id.
        places: the places.
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
        base: "_Group | None" = None,
        previous: Sequence["_Group"] = (),
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
        base: "_Group | None",
        previous: Sequence["_Group"],
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
        self, reached: ReachedObject, watchfulness: Watchfulness, previous: Sequence["_Group"]
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


class _Compared:
    """Places of a group that are compared with their last known values.

    Attributes:
        single: the indices of those that are compared one by one.
    """

    def __init__(self, group: _Group, indices: Sequence[int], single: Sequence[int]) -> None:
        """Compare some places together as far as that can be done, and others one by one."""
        steady = [i for i in indices if can_be_steady(group.places[i])]
        self.single = [*single, *sorted({*indices}.difference(steady))]
        self._together = [
            SteadyEntries(group.places, steady[start : start + _NUM_TOGETHER])
            for start in range(0, len(steady), _NUM_TOGETHER)
        ]

    def compare(self, group: _Group) -> list[int]:
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


@dataclass
class _Cell:
    """The entries of a holder that have been found to change: some keys, or all (None)."""

    holder: ReachedObject
    keys: set[Any] | None = field(default_factory=set)

    def parts(self, walk: StateWalk) -> list[ReachedObject]:
        """Return the present value."""
        inside = walk.inside(self.holder)
        return [part for part in inside if self.keys is None or part.way.key in self.keys]


class Watch:
    """Finds, from one comparison to the next, what code of modules and functions has changed."""

    def __init__(self, *roots: Any) -> None:
        """Watch all that can be reached from modules and functions, once `begin` is called."""
        self._roots = [root(value, _name_of(value)) for value in roots if value is not None]
        self._modules = [value for value in roots if isinstance(value, nn.Module)]
        self._cells: dict[Any, _Cell] = {}
        self._is_outdated = True
        self.watchfulness = Watchfulness()
        self.base = self.extra = _Group(StateWalk([]), self.watchfulness)
        self._quiet = self._lively = _Compared(self.base, [], [])
        self._changed: set[int] = set()

    def begin(self, *, is_exact: bool = True) -> None:
        """Begin a step: tensors are compared by their numbers in it, or by counts of changes."""
        self.watchfulness.is_exact = is_exact
        if is_exact or self._is_outdated:
            self._walk_again()
        else:
            self.compare_all()
        self._walk_extra(())

    def look_again(self) -> None:
        """Walk again when the next step begins: parameters have been frozen, or are trained now."""
        self._is_outdated = True

    @property
    def is_complete(self) -> bool:
        """False if there are more objects than are watched."""
        return self.base.is_complete

    @property
    def state_tensors(self) -> list[Tensor]:
        """The tensors that have been found to change."""
        numbers = [g.numbers_on(key) for g in (self.base, self.extra) for key in g.numbers]
        return [t for n in numbers if n.history.is_state for _, t in n.holders]

    def refresh(self, *given: Any) -> None:
        """Compare everything with its last known value; also watch what a forward is given.

        Unless tensors are compared by their numbers, attributes of torch's own modules are left to
        `compare_all`: only code of other classes could change them.
        """
        if self.watchfulness.is_exact:
            self.compare_all()
        else:
            self._note(self._lively.compare(self.base))
        self._walk_extra(given)

    def _walk_extra(self, given: Sequence[Any]) -> None:
        """Walk what is there now where something has changed, and what a forward is given."""
        base = self.base
        walk = StateWalk([root(value, "an argument") for value in given], known=base.seen)
        for cell in self._cells.values():
            walk.add(cell.parts(walk))
        leaves = pytree.tree_leaves(given) if given else ()
        self.extra = _Group(
            walk,
            self.watchfulness,
            left_out={storage_key(leaf) for leaf in leaves if isinstance(leaf, Tensor)},
            base=base,
            previous=[self.extra],
        )

    def compare_all(self) -> list[KeptValue]:
        """Compare all places, and return those of torch's modules that have changed."""
        base, old = self.base, list(self.base.values)
        changed = self._quiet.compare(base)
        self._note(changed)
        self._note(self._lively.compare(base))
        self._lively.single += changed
        return [KeptValue(base.places[i], base.reached[i], old[i]) for i in changed]

    def picture(self) -> "StatePicture":
        """Return the values that the last `refresh` has found."""
        return StatePicture(self)

    def changed_since(self, base: _Group, values: Sequence[Any]) -> list[KeptValue]:
        """Return the places of a base whose value is another one now, with the old value."""
        if base is self.base:
            places = ((index, values[index]) for index in sorted(self._changed))
            return [
                KeptValue(base.places[index], base.reached[index], value)
                for index, value in places
                if base.values[index] is not value
            ]
        kept = map(KeptValue, base.places, base.reached, values)
        return [each for each in kept if each.place.differs(each.value)]

    def _walk_again(self) -> None:
        """Find the places again, but for what is known to change."""
        walk = StateWalk(self._roots, is_passed_over=self._is_cell if self._cells else None)
        parameters = [p for module in self._modules for p in module.parameters()]
        self.base = _Group(
            walk,
            self.watchfulness,
            left_out={storage_key(p) for p in parameters if p.requires_grad},
            previous=[self.base, self.extra],
        )
        cells = [_identity(reached.value) in self._cells for reached in self.base.reached]
        quiet = [i for i, each in enumerate(self.base.reached) if _is_quiet(each) and not cells[i]]
        lively = sorted({*range(len(cells))}.difference(quiet))
        self._quiet = _Compared(self.base, quiet, [])
        self._lively = _Compared(
            self.base, [i for i in lively if not cells[i]], [i for i in lively if cells[i]]
        )
        self._changed, self._is_outdated = set(), False

    def _is_cell(self, holder: Any, key: Any) -> bool:
        cell = self._cells.get(_identity(holder)) if self._cells else None
        return cell is not None and (cell.keys is None or key in cell.keys)

    def _note(self, changed: Iterable[int]) -> None:
        """Take the new values of places; what they hold now is walked at each refresh."""
        for index in changed:
            self._note_one(index)

    def _note_one(self, index: int) -> None:
        base = self.base
        place, reached, old = base.places[index], base.reached[index], base.values[index]
        self._changed.add(index)
        if isinstance(place, TensorNumbers):
            place.history.is_state = True
        base.values[index] = place.take()
        if isinstance(place, TensorNumbers | Generator | Length | Progress):
            return
        cell = self._cells.setdefault(_identity(reached.value), _Cell(reached))
        keys: set[Any] | None = None
        if isinstance(place, Entries | ClassAttributes) and cell.keys is not None:
            keys = cell.keys | set(place.changed(old))
            keys = keys if len(keys) <= _MOST_KEYS else None
        self._is_outdated |= keys != cell.keys
        cell.keys = keys
        if isinstance(place, Entries):
            self._let_go(old, base.values[index], reached.way)

    def _let_go(self, old: dict[Any, Any], now: dict[Any, Any], way: Way) -> None:
        """Of large tensors that others replace, keep no more than is allowed, in sum."""
        for key, value in old.items():
            if value is now.get(key) or is_plain(value):
                continue
            inside = [r.value for r in StateWalk([root(value, "")], known=self.base.seen)]
            lost = [
                tensor
                for tensor in inside
                if isinstance(tensor, Tensor) and storage_key(tensor) not in self.base.numbers
            ]
            num_bytes = sum(num_bytes_of(t) for t in lost if not isinstance(t, nn.Parameter))
            if num_bytes > FEW_BYTES and not self.watchfulness.hold(lost[0], num_bytes):
                old[key] = Gone(f"{way.name}.{key}", num_bytes)


class StatePicture:
    """The values of all places at one time."""

    def __init__(self, watch: Watch) -> None:
        """Take what the last `refresh` has found."""
        self._watch, self._base, self._values = watch, watch.base, list(watch.base.values)
        self._aliases = watch.extra.aliases
        extra = list(watch.extra.kept())
        self._extra = [each for each in extra if not _is_without_copy(each)]
        # Without the tensors themselves, which may be activations.
        self._uncopied = [
            (each.place.history, each.reached.way)
            for each in extra
            if isinstance(each.place, TensorNumbers) and _is_without_copy(each)
        ]

    def changed(self) -> list[KeptValue]:
        """Return the places that have another value now, as the last `refresh` found."""
        extra = [each for each in self._extra if each.place.differs(each.value)]
        return [*self._watch.changed_since(self._base, self._values), *extra]

    def new_generators(self) -> dict[str, Any]:
        """The states of the generators that did not exist yet, by name."""
        known = {id(e.place.source) for e in self._extra if isinstance(e.place, Generator)}
        return {
            each.reached.way.name: each.value
            for each in self._watch.extra.kept()
            if isinstance(each.place, Generator) and id(each.place.source) not in known
        }

    def put_back(self) -> None:
        """Restore it.

        Parameters, gradients and torch's own generators are left out. A container that a library's
        object holds, such as a dictionary of angles by length, is restored if tensors without data
        have been added to it.

        Raises:
            SynthError: something has changed that cannot be restored.
        """
        self._watch.refresh()
        for each in self.changed():
            _restore(each)
        for container, value in self._base.foreign:
            if _has_new_meta_tensor(container, value):
                container.put(value)

    @contextmanager
    def again(self) -> Iterator[list[Tensor]]:
        """Restore it within the block, and then what was there before the block.

        Within the block other tensors stand in for those that forwards change; returns them.

        Raises:
            SynthError: something that has changed cannot be restored.
        """
        self._watch.refresh()
        changed = self.changed()
        for history, way in self._uncopied:
            if history.is_state:
                raise uncopied(way.name)
        tensors = [each for each in changed if isinstance(each.place, TensorNumbers)]
        others = [each for each in changed if not isinstance(each.place, TensorNumbers)]
        newest = [each._replace(value=_newest(each.place)) for each in others]
        try:
            for each in others:
                _restore(each)
            with ExitStack() as block:
                yield [
                    t for each in self._with_all_state(tensors) for t in self._enter(each, block)
                ]
        finally:
            for each in newest:
                each.place.put(each.value)

    def _with_all_state(self, tensors: list[KeptValue]) -> list[KeptValue]:
        """Add tensors that forwards change, and that have not changed since."""
        base, there = self._base, {id(each.place) for each in tensors}
        own = [(base.numbers_on(key), index) for key, index in base.numbers.items()]
        return tensors + [
            KeptValue(place, base.reached[index], self._values[index])
            for place, index in own
            if place.history.is_state and id(place) not in there
        ]

    def _enter(self, each: KeptValue, block: ExitStack) -> list[Tensor]:
        assert isinstance(each.place, TensorNumbers)
        others = [holder for numbers, holder in self._aliases if numbers is each.place]
        with _naming(each):
            return block.enter_context(each.place.stood_in_for(each.value, others))


def picture_of(*roots: Any, given: Sequence[Any] = ()) -> StatePicture:
    """Take all that code of modules and functions can change, also of what they are given."""
    watch = Watch(*roots)
    watch.begin()
    watch.refresh(*given)
    return watch.picture()


@contextmanager
def unchanged(*roots: Any, given: Sequence[Any] = ()) -> Iterator[None]:
    """Restore after the block all that code of modules and functions can change.

    Args:
        roots: the modules and functions.
        given: arguments of theirs; the numbers of tensors in them are left out.

    Raises:
        SynthError: something has changed that cannot be restored.
    """
    before = picture_of(*roots, given=given)
    try:
        yield
    finally:
        before.put_back()


def _watched_storage(reached: ReachedObject) -> int | None:
    tensor = reached.value
    return None if reached.is_foreign or tensor.requires_grad else storage_key(tensor)


def _is_buffer(way: Way) -> bool:
    return way.before is not None and way.before.key == "_buffers"


def _newest(place: StatePlace) -> Any:
    return place.copy() if isinstance(place, ArrayValues) else place.take()


def _size_of(place: StatePlace) -> int:
    return place.num_bytes if isinstance(place, TensorNumbers | ArrayValues) else 0


def _is_quiet(reached: ReachedObject) -> bool:
    """True for the attributes of one of torch's own modules, and its tables of sub-modules."""
    way = reached.way if isinstance(reached.way.holder, nn.Module) else reached.way.before
    return (
        isinstance(reached.value, dict)
        and way is not None
        and isinstance(way.holder, nn.Module)
        and type(way.holder).__module__.startswith("torch.nn.modules.")
    )


def _is_without_copy(each: KeptValue) -> bool:
    return isinstance(each.value, Numbers) and each.value.copy is None


def _identity(holder: Any) -> Any:
    """Identify what holds something, also where each walk makes another `StateItem`."""
    if isinstance(holder, StateItem):
        return id(holder.container), holder.key
    if isinstance(holder, Attribute):
        return id(holder.owner), holder.name
    return (id(holder.owner), "") if isinstance(holder, ClassAttributes) else id(holder)


def _name_of(value: Any) -> str:
    return str(getattr(value, "__name__", type(value).__name__))


def _restore(each: KeptValue) -> None:
    """Put an old value back.

    Raises:
        SynthError: that cannot be done; names the place.
    """
    with _naming(each):
        if isinstance(each.place, Items):
            each.place.refuse_loss(each.value)
        each.place.put(each.value)


@contextmanager
def _naming(each: KeptValue) -> Iterator[None]:
    """Name the place in an error."""
    try:
        yield
    except SynthError as error:
        raise SynthError(f"{each.reached.way.name}: {error}") from error


def _has_new_meta_tensor(container: Entries | Items, before: Any) -> bool:
    """True if a tensor without data is in what a container did not hold before."""
    old = {id(part) for part in (before.values() if isinstance(before, dict) else before)}
    now = container.take()
    new = [x for x in (now.values() if isinstance(now, dict) else now) if id(x) not in old]
    walk = StateWalk([root(part, "") for part in new])
    return any(isinstance(r.value, Tensor) and r.value.is_meta for r in walk)
