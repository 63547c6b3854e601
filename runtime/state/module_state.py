"""The state that code of modules and functions can change: taken, restored, left unchanged.

A `StatePicture` has the value of every such place at one time. Pictures share what has not changed.
Each one costs a comparison of all places by identity; what an entry holds that has changed is
walked again, so that new objects are found.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor

from synth.errors import SynthError

from .array_values import ArrayValues
from .place_group import KeptValue
from .places import Entries, Items, StatePlace
from .positions import Generator
from .tensor_numbers import Numbers, TensorNumbers, uncopied
from .walk import StateWalk, root
from .watch import Watch


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
    return StatePicture(watch)


@contextmanager
def unchanged(*roots: Any, given: Sequence[Any] = ()) -> Iterator[None]:
    """Restore after the block all that code of modules and functions can change.

    Args:
        given: arguments of theirs; the numbers of tensors in them are left out.

    Raises:
        SynthError: something has changed that cannot be restored.
    """
    before = picture_of(*roots, given=given)
    try:
        yield
    finally:
        before.put_back()


def _newest(place: StatePlace) -> Any:
    return place.copy() if isinstance(place, ArrayValues) else place.take()


def _is_without_copy(each: KeptValue) -> bool:
    return isinstance(each.value, Numbers) and each.value.copy is None


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
