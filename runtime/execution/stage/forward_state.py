"""State that forwards change: R finds it as F did, and leaves it as it was.

It is counters, buffers such as running statistics, other tensors, containers, and random generators
other than torch's global ones.
"""

import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from torch import Tensor, nn

from synth.errors import SynthError

from ...state.comparison import are_equal_states
from ...state.module_state import StatePicture
from ...state.place_group import KeptValue
from ...state.places import ClassAttributes, Entries
from ...state.positions import Generator
from ...state.tensor_numbers import TensorNumbers, digest_of, storage_key, storage_of
from ...state.walk import MOST_OBJECTS
from ...state.watch import Watch

# In so many steps of each mode (`train`, `eval`) tensors are compared by their numbers, for which a
# device must be waited for; later by autograd's counts of in-place changes.
_NUM_EXACT_STEPS = 2


class StateAtForward:
    """The state as an F found it, and the random generators as it left them."""

    def __init__(self, picture: StatePicture, versions: list[int]) -> None:
        """Take what F has found, and the versions of its parameters; `close` follows it."""
        self.picture = picture
        self.versions = versions
        self._changed: list[KeptValue] = []
        self._drawn: list[KeptValue] = []
        self._made: dict[str, Any] = {}

    @property
    def changed(self) -> list[KeptValue]:
        """The places that F has changed, except buffers, which R on another rank leaves alone."""
        return [each for each in self._changed if not _is_buffer(each)]

    def close(self) -> None:
        """Take what F has left, right after it."""
        self._changed = self.picture.changed()
        used = [each for each in self._changed if isinstance(each.place, Generator)]
        self._drawn = [each._replace(value=each.place.take()) for each in used]
        self._made = self.picture.new_generators()

    def compare(self, watch: Watch) -> None:
        """Compare the generators with those that R leaves.

        Raises:
            SynthError: R has drawn other random numbers than F.
        """
        other = [e.reached.way.name for e in self._drawn if e.place.differs(e.value)]
        if self._made:
            watch.refresh()
            made = self.picture.new_generators()
            other += [
                name
                for name, state in self._made.items()
                if name not in made or not are_equal_states(made[name], state)
            ]
        if other:
            raise SynthError(
                f"{other[0]}: a forward draws random numbers that its recomputation cannot repeat: "
                f"make the generator before the first step, or give it a seed"
            )


class ForwardState:
    """The state that the forwards of a module change, found by comparing what code can reach."""

    def __init__(self, module: nn.Module, *others: Any) -> None:
        """Watch a module and functions beside it, such as the loss."""
        self._module = module
        self._watch = Watch(module, *others)
        self._num_steps: Counter[tuple[bool, ...]] = Counter()
        self._mode: tuple[bool, ...] = ()
        self._is_begun = False
        self._stand_ins: list[Tensor] | None = None
        self._trained: tuple[bool, ...] = ()
        self._parameters: list[nn.Parameter] = []

    def begin(self) -> None:
        """Begin a step. What is watched is found at its first light F, if it has one."""
        self._is_begun = False

    def end(self) -> None:
        """End a step.

        Raises:
            SynthError: in this step a forward has changed a module of torch's for the first time.
        """
        if self._is_begun and not self._watch.watchfulness.is_exact:
            changed = self._watch.compare_all()
            if changed:
                raise SynthError(
                    f"a forward has changed {names_of(changed)}, of one of torch's modules, for "
                    f"the first time, which the recomputations of this step may have seen too "
                    f"early: keep it in a module of your own, or do not recompute its layer"
                )
        self._is_begun = False

    @property
    def is_first_step(self) -> bool:
        """True in the first step of a mode, once a light F has run."""
        return self._is_begun and self._num_steps[self._mode] == 1

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors that forwards change, or their stand-ins while R runs."""
        return self._watch.state_tensors if self._stand_ins is None else self._stand_ins

    @contextmanager
    def recorded(self, *given: Any) -> Iterator[StateAtForward]:
        """Observe the F in the block, given some arguments; afterwards there is what R needs.

        Raises:
            SynthError: F changes a parameter that is trained.
        """
        self._prepare()
        self._watch.refresh(*given)
        found = StateAtForward(StatePicture(self._watch), self._versions())
        is_exact = self._watch.watchfulness.is_exact
        with _same_parameters(self._module) if is_exact else nullcontext():
            yield found
        self._watch.refresh(*given)
        found.close()

    @contextmanager
    def again(self, found: StateAtForward | None) -> Iterator[None]:
        """Run R in the block: from what F found, which is None if another rank has run F."""
        self._prepare()
        self._watch.refresh()
        picture = StatePicture(self._watch) if found is None else found.picture
        if found is not None:
            self._check_versions(found.versions)
        with picture.again() as self._stand_ins:
            try:
                yield
                if found is not None:
                    found.compare(self._watch)
            finally:
                self._stand_ins = None

    def _versions(self) -> list[int]:
        """Autograd's counts of changes of the trained parameters in place."""
        return [p._version for p in self._parameters]

    def _check_versions(self, before: list[int]) -> None:
        now = self._versions()
        if now == before:
            return
        changed = {id(p) for p, a, b in zip(self._parameters, now, before, strict=True) if a != b}
        names = [name for name, p in self._module.named_parameters() if id(p) in changed]
        raise SynthError(
            f"the parameter {', '.join(names)} was changed between a forward and its "
            f"recomputation, which would compute something else: update parameters after the step, "
            f"and not in hooks"
        )

    def _prepare(self) -> None:
        if self._is_begun:
            return
        parameters = list(self._module.parameters())
        trained = tuple(p.requires_grad for p in parameters)
        self._parameters = [p for p in parameters if p.requires_grad]
        if trained != self._trained:
            self._watch.look_again()
        self._trained = trained
        self._mode = (*(part.training for part in self._module.modules()), *trained)
        self._num_steps[self._mode] += 1
        self._watch.begin(is_exact=self._num_steps[self._mode] <= _NUM_EXACT_STEPS)
        self._is_begun = True
        if not self._watch.is_complete:
            warnings.warn(
                f"{type(self._module).__name__} reaches more than {MOST_OBJECTS:,} objects, of "
                f"which the rest is not watched: what a forward changes there, its recomputation "
                f"changes again; keep large data in tensors or arrays",
                stacklevel=2,
            )


def _is_buffer(each: KeptValue) -> bool:
    return isinstance(each.place, TensorNumbers) and each.place.is_buffer


def names_of(changed: list[KeptValue]) -> str:
    """Name places, for a message."""
    return ", ".join(dict.fromkeys(name for each in changed for name in _names_of(each)))


def _names_of(each: KeptValue) -> list[str]:
    name = each.reached.way.name
    if isinstance(each.place, Generator):
        return [f"the random generator {name}"]
    if isinstance(each.place, Entries | ClassAttributes):
        return [f"{name}.{key}" for key in each.place.changed(each.value)]
    return [name]


@contextmanager
def _same_parameters(module: nn.Module) -> Iterator[None]:
    before = _digests(module)
    yield
    now = _digests(module)
    for name, (parameter, *known) in before.items():
        if name in now and now[name][0] is parameter and now[name][1:] != (*known,):
            raise SynthError(
                f"a forward changes the parameter {name} in place, which its recomputation would "
                f"do again: change it between steps, freeze it (requires_grad_(False)), or do not "
                f"recompute its layer"
            )


def _digests(module: nn.Module) -> dict[str, tuple[Tensor, int, int]]:
    """The trained parameters, autograd's counts of their changes, and digests of their numbers."""
    return {
        name: (p, p._version, 0 if storage_key(p) is None else digest_of(storage_of(p)))
        for name, p in module.named_parameters()
        if p.requires_grad
    }
