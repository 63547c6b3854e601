"""Finds what code of modules and functions has changed since the last comparison."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.utils import _pytree as pytree

from .comparison import is_plain
from .place_group import ComparedPlaces, KeptValue, PlaceGroup
from .places import Attribute, ClassAttributes, Entries, Length, StateItem
from .positions import Generator, Progress
from .tensor_numbers import FEW_BYTES, TensorNumbers, Watchfulness, num_bytes_of, storage_key
from .walk import Gone, ReachedObject, StateWalk, Way, root

# A holder of which more entries change is walked again as a whole.
_MOST_KEYS = 16


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
        self.base = self.extra = PlaceGroup(StateWalk([]), self.watchfulness)
        self._quiet = self._lively = ComparedPlaces(self.base, [], [])
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
        self.extra = PlaceGroup(
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

    def changed_since(self, base: PlaceGroup, values: Sequence[Any]) -> list[KeptValue]:
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
        self.base = PlaceGroup(
            walk,
            self.watchfulness,
            left_out={storage_key(p) for p in parameters if p.requires_grad},
            previous=[self.base, self.extra],
        )
        cells = [_identity(reached.value) in self._cells for reached in self.base.reached]
        quiet = [i for i, each in enumerate(self.base.reached) if _is_quiet(each) and not cells[i]]
        lively = sorted({*range(len(cells))}.difference(quiet))
        self._quiet = ComparedPlaces(self.base, quiet, [])
        self._lively = ComparedPlaces(
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


def _is_quiet(reached: ReachedObject) -> bool:
    """True for the attributes of one of torch's own modules, and its tables of sub-modules."""
    way = reached.way if isinstance(reached.way.holder, nn.Module) else reached.way.before
    return (
        isinstance(reached.value, dict)
        and way is not None
        and isinstance(way.holder, nn.Module)
        and type(way.holder).__module__.startswith("torch.nn.modules.")
    )


def _identity(holder: Any) -> Any:
    """Identify what holds something, also where each walk makes another `StateItem`."""
    if isinstance(holder, StateItem):
        return id(holder.container), holder.key
    if isinstance(holder, Attribute):
        return id(holder.owner), holder.name
    return (id(holder.owner), "") if isinstance(holder, ClassAttributes) else id(holder)


def _name_of(value: Any) -> str:
    return str(getattr(value, "__name__", type(value).__name__))
