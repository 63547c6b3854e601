"""Records one forward of a whole model: calls of its modules, and the functions between them.

The model's own code runs with real tensors, so its control flow, its shapes and its masks are what
they are in training. What depends on no input and no parameter is computed once, and is a constant
of the recording. Modules are called whole, as the leaves of `torch.fx` are, with whose tracer this
shares the way calls are intercepted (Reed, DeVito, He, Ussery and Ansel, "torch.fx: Practical
Program Capture and Transformation for Deep Learning in Python", MLSys 2022).
"""

import random
import sys
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import CheckpointFunction

from synth.errors import SynthError

from ..empty import has_empty_parameters
from ..signature import layer_signature
from .code_place import WAY_OUT, line_run, reads
from .guard import Guard, storage_of
from .held_tensors import tensors_in
from .intercept import intercepted
from .outline import run_empty
from .steps import ConstantRef, DeviceRef, ParameterRef, RecordedCall, RecordedForward, TensorRef
from .structure import look_of
from .torch_functions import mutates, reads_numbers, sources


def record(
    model: nn.Module,
    closed: Mapping[str, nn.Module],
    call: Callable[..., Any],
    inputs: Any,
    targets: Any,
) -> RecordedForward:
    """Record a forward.

    Args:
        model: the whole model.
        closed: the modules that are called whole, by name. Equal ones that are given equal shapes
            are run once.
        call: runs the model with the inputs and the targets, and returns its loss.
        inputs: a tree of tensors.
        targets: a tree of tensors.

    Raises:
        SynthError: the code between the modules reads numbers of tensors that depend on the
            inputs, or a tensor cannot be followed.
    """
    recorder = _Recorder(model, closed)
    given = [recorder.enter(tree) for tree in (inputs, targets)]
    with torch.enable_grad(), intercepted(recorder, closed), recorder.guard, recorder:
        loss = call(given[0][0], given[1][0])
    return recorder.finish(given[0][1], given[1][1], loss)


class _Recorder(TorchFunctionMode):
    """Sees each function of torch that is called outside of the closed modules."""

    def __init__(self, model: nn.Module, closed: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self._names = {id(module): name for name, module in reversed(list(closed.items()))}
        saved = model.state_dict(keep_vars=True)
        self._parameters = {id(saved[name]): name for name in reversed(list(saved))
                            if isinstance(saved[name], Tensor)}  # fmt: skip
        self._parameters |= {id(p): name for name, p in model.named_parameters()}
        insides = {id(b) for module in closed.values() for b in module.buffers()}
        self._open_buffers = {name: (b, b._version) for name, b in model.named_buffers()
                              if id(b) not in insides}  # fmt: skip
        self._is_training = model.training
        self.guard = Guard()
        for tensor in (*model.parameters(), *saved.values()):
            if isinstance(tensor, Tensor):
                self.guard.follow(tensor)
        devices = (p.device for p in model.parameters() if not p.is_meta)
        self._device = next(devices, torch.device("cpu"))
        self._steps: list[RecordedCall] = []
        self._numbers: dict[int, int] = {}
        self._kept: list[Tensor] = []  # an id is a tensor's while it lives
        self._shapes: list[str] = []
        self._aliases: dict[int, int] = {}
        self._constants: list[Tensor] = []
        self._constant_numbers: dict[int, int] = {}
        self._versions: list[tuple[int, str]] = []  # of the constants, and where they are read
        self._like: dict[Hashable, _Output] = {}
        self._autocast = _autocast()
        self._drawn = _other_generators()
        self.is_inside = False

    def enter(self, tree: Any) -> tuple[Any, tuple[int, ...]]:
        """Return inputs as tensors of the recording's own, and their numbers."""
        leaves, spec = pytree.tree_flatten(tree)
        for leaf in leaves:
            if not isinstance(leaf, Tensor) and any(tensors_in(leaf)):
                raise SynthError(
                    f"the inputs have a {type(leaf).__name__} that holds tensors, which cannot be "
                    f"followed: give tensors, or tuples and dictionaries of tensors"
                )
        own = [leaf.detach().clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        numbers = tuple(self._add(leaf) for leaf in own if isinstance(leaf, Tensor))
        return pytree.tree_unflatten(own, spec), numbers

    def finish(
        self, inputs: tuple[int, ...], targets: tuple[int, ...], loss: Any
    ) -> RecordedForward:
        """Return what was recorded.

        Raises:
            SynthError: the loss is no scalar that depends on the model, or code outside of the
                layers changed a constant or a buffer, or drew numbers that are not torch's.
        """
        self._check_generators()
        number = self._numbers.get(id(loss))
        if number is None or not loss.requires_grad:
            raise SynthError(
                "the loss of the whole model cannot be followed to its parameters: check that it "
                "is computed by functions of torch, without `detach`, `item` or `no_grad`"
            )
        for name, (buffer, version) in self._open_buffers.items():
            if buffer._version != version:
                raise SynthError(
                    f"the model's code outside of its layers changes the buffer {name}, of which "
                    f"each rank would have its own: {WAY_OUT}"
                )
        for constant, (version, place) in zip(self._constants, self._versions, strict=True):
            if constant._version != version:
                raise SynthError(
                    f"a constant that is used at {place} is changed in place afterwards: make a "
                    f"new tensor instead, or {WAY_OUT}"
                )
        own = [storage_of(tensor) for tensor in self._kept]
        storages = [own[self._aliases.get(place, place)] for place in range(len(own))]
        return RecordedForward(
            tuple(self._steps),
            inputs,
            targets,
            number,
            tuple(self._constants),
            tuple(self._shapes),
            tuple(storages),
        )

    def call_module(
        self, module: nn.Module, run: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        """Call a closed module, and record the call."""
        name = self._names[id(module)]
        self._check_state()
        leaves, spec = pytree.tree_flatten((args, kwargs))
        references = tuple(self._reference(leaf, name) for leaf in leaves)
        made = self._output(name, module, run, args, kwargs)
        output, tree = pytree.tree_flatten(made.value)
        own = [_as_output(leaf) for leaf in output]
        changed = [leaves[place] for place in made.mutated]
        step = RecordedCall(name, None, references, spec, (), with_grad=_with_grad())
        first = len(self._kept)
        self._append(step, own, changed)
        numbers = iter(range(first, len(self._kept)))
        for leaf, source in zip(output, made.aliases, strict=True):
            number = next(numbers) if isinstance(leaf, Tensor) else None
            if number is not None and source is not None and id(leaves[source]) in self._numbers:
                self._aliases[number] = self._origin(self._numbers[id(leaves[source])])
        return pytree.tree_unflatten(own, tree)

    def _origin(self, number: int) -> int:
        return self._aliases.get(number, number)

    def _output(
        self, name: str, module: nn.Module, run: Callable[..., Any], args: Any, kwargs: Any
    ) -> "_Output":
        """Run a module, or return what an equal one gave for equal shapes."""
        leaves, key = pytree.tree_leaves((args, kwargs)), None
        if next(module.parameters(), None) is not None:
            key = (layer_signature(module, with_places=False), tuple(map(_look, leaves)))
            if key in self._like:
                return self._like[key]
        with self._inside(), torch.no_grad():
            versions = _versions(leaves)
            if has_empty_parameters(module):
                value = run_empty(module, args, kwargs)
            else:
                value = run(module, *args, **kwargs)
            mutated = [place for place, v in enumerate(_versions(leaves)) if v != versions[place]]
        shared = {storage_of(x): place for place, x in enumerate(leaves) if isinstance(x, Tensor)}
        outputs = pytree.tree_leaves(value)
        for leaf in outputs:
            if not isinstance(leaf, Tensor) and any(tensors_in(leaf)):
                raise SynthError(
                    f"{name} returns a {type(leaf).__name__} that holds tensors, which cannot be "
                    f"followed: return tensors, or tuples and dictionaries of tensors"
                )
        aliases = [shared.get(storage_of(x)) if isinstance(x, Tensor) else None for x in outputs]
        made = _Output(value, tuple(mutated), tuple(aliases))
        if key is not None:
            self._like[key] = made
        return made

    @contextmanager
    def _inside(self) -> Iterator[None]:
        """Within it nothing is recorded."""
        self._check_generators()
        self.is_inside, reads = True, self.guard.reads
        try:
            yield
        finally:
            self.is_inside = False
            self.guard.forget()
            self.guard.reads = reads
            self._drawn = _other_generators()

    def call_autograd(self, run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call an autograd function outside of the closed modules as one step."""
        if getattr(run, "__self__", None) is CheckpointFunction:
            return args[0](*args[2:])  # it computes what its first argument does
        return self.__torch_function__(run, (), args, kwargs)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.is_inside:
            return func(*args, **kwargs)
        leaves, spec = pytree.tree_flatten((args, kwargs))
        name = getattr(func, "__name__", "")
        is_followed = any(map(self._is_followed, sources(name, args, kwargs)))
        if is_followed:
            self._check_call(func, name, leaves)
            if mutates(name, kwargs) and args and isinstance(args[0], Tensor):
                self._make_own(args[0])
            references = tuple(self._reference(leaf, name) for leaf in leaves)
        versions = _versions(leaves)
        self.guard.forget()
        self.is_inside = True
        try:
            result = func(*args, **kwargs)
        finally:
            self.is_inside = False
        if self.guard.reads and not (is_followed and self._may_read(func, name)):
            raise reads(name)
        if not (is_followed or self.guard.draws):
            return result
        if not is_followed:
            references = tuple(self._reference(leaf, name) for leaf in leaves)
        mutated = [leaf for leaf, version in zip(leaves, versions, strict=True)
                   if isinstance(leaf, Tensor) and leaf._version != version]  # fmt: skip
        outputs = pytree.tree_leaves(result)
        if mutated or any(isinstance(leaf, Tensor) for leaf in outputs):
            in_mode = self.guard.draws or ("dropout" in name and not self._is_training)
            step = RecordedCall(
                None, func, references, spec, (), with_grad=_with_grad(), in_mode=in_mode
            )
            self._append(step, outputs, mutated)
        return result

    def _is_followed(self, leaf: Any) -> bool:
        if isinstance(leaf, slice):
            return any(map(self._is_followed, (leaf.start, leaf.stop, leaf.step)))
        return id(leaf) in self._numbers or id(leaf) in self._parameters

    def _check_call(self, func: Any, name: str, leaves: Sequence[Any]) -> None:
        """Check that a function of torch makes no number or shape of what is followed.

        Raises:
            SynthError: it does, or it changes what a tensor is.
        """
        self._check_state()
        slices = [leaf for leaf in leaves if isinstance(leaf, slice)]
        if reads_numbers(name) or any(map(self._is_followed, slices)):
            raise reads(name)
        if name == "__set__":
            raise SynthError(
                f"the model's code outside of its layers sets an attribute of a tensor (at "
                f"{line_run()}), such as `data` or `requires_grad`: {WAY_OUT}"
            )

    def _check_state(self) -> None:
        """Check that autocast is as at the start."""
        if _autocast() != self._autocast:
            raise SynthError(
                f"the model's code turns autocast on or off outside of its layers "
                f"(at {line_run()}): {WAY_OUT}"
            )

    def _check_generators(self) -> None:
        if _other_generators() != self._drawn:
            raise SynthError(
                "the model's code outside of its layers draws random numbers of Python or NumPy, "
                "which would be the same in each step: draw them by torch, or " + WAY_OUT
            )

    def _may_read(self, func: Any, name: str) -> bool:
        """True for functions that read numbers, on which neither code nor shapes depend."""
        is_index = name in ("__getitem__", "__setitem__", "one_hot")
        is_checked = getattr(func, "__module__", "") == "torch.nn.functional"
        return self.guard.reads == "numbers" and (is_index or is_checked)

    def _make_own(self, tensor: Tensor) -> None:
        """Make a value of a constant that is about to be changed: each micro-batch has a copy."""
        if self._is_followed(tensor) or self.guard.depends(tensor):
            return
        copied = self._reference(tensor.detach().clone(), "clone")
        leaves, spec = pytree.tree_flatten(((copied,), {}))
        self._append(RecordedCall(None, torch.clone, tuple(leaves), spec, ()), [tensor])

    def _append(
        self, step: RecordedCall, outputs: Sequence[Any], mutated: Sequence[Tensor] = ()
    ) -> None:
        for tensor in mutated:
            if id(tensor) not in self._numbers:
                raise SynthError(
                    f"the model's code changes a parameter, a buffer or a constant in place "
                    f"outside of its layers (at {line_run()}): {WAY_OUT}"
                )
        changed = tuple(self._numbers[id(tensor)] for tensor in mutated)
        numbers = tuple(
            (place, self._add(leaf))
            for place, leaf in enumerate(outputs)
            if isinstance(leaf, Tensor) and id(leaf) not in self._parameters
        )
        place = line_run() if changed else ""
        self._steps.append(replace(step, outputs=numbers, mutated=changed, place=place))

    def _add(self, tensor: Tensor) -> int:
        number = len(self._kept)
        self._kept.append(tensor)
        self._shapes.append(look_of(tensor))
        self._numbers[id(tensor)] = number
        self.guard.follow(tensor)
        return number

    def _reference(self, leaf: Any, receiver: str) -> Any:
        """Return what stands for a leaf of arguments.

        Raises:
            SynthError: it depends on inputs or parameters, and it is unknown how it was computed.
        """
        if isinstance(leaf, torch.Generator):
            raise SynthError(
                f"{receiver} (at {line_run()}) draws from a generator of its own, whose state the "
                f"layers would not share: draw from torch's default generator, or {WAY_OUT}"
            )
        if isinstance(leaf, torch.device) and leaf.type == self._device.type:
            return DeviceRef()
        if not isinstance(leaf, Tensor):
            held = next((x for x in tensors_in(leaf) if self._depends(x)), None)
            if held is None:
                return leaf
            raise SynthError(
                f"{receiver} is given a {type(leaf).__name__} (at {line_run()}) that holds "
                f"tensors, which cannot be followed: give tensors, tuples or dictionaries, or "
                f"{WAY_OUT}"
            )
        if id(leaf) in self._numbers:
            return TensorRef(self._numbers[id(leaf)])
        if id(leaf) in self._parameters:
            return ParameterRef(self._parameters[id(leaf)])
        if self._depends(leaf):
            raise SynthError(
                f"a tensor of shape {list(leaf.shape)} that {receiver} is given (at {line_run()}) "
                f"depends on the inputs, parameters or random numbers in a way that cannot be "
                f"followed, such as a module's attribute, a write to a part of a tensor, or vmap: "
                f"{WAY_OUT}"
            )
        number = self._constant_numbers.get(id(leaf))
        if number is None:
            number = self._constant_numbers[id(leaf)] = len(self._constants)
            self._constants.append(leaf)
            self._versions.append((leaf._version, line_run()))
        return ConstantRef(number)

    def _depends(self, tensor: Tensor) -> bool:
        return self._is_followed(tensor) or tensor.requires_grad or self.guard.depends(tensor)


class _Output(NamedTuple):
    """The output of a module, and the places of arguments that it changed or returned."""

    value: Any
    mutated: tuple[int, ...]
    aliases: tuple[int | None, ...]  # of each leaf of the value


def _as_output(leaf: Any) -> Any:
    """Return a tensor that no other step gave; one of real numbers has a gradient to follow."""
    if not isinstance(leaf, Tensor):
        return leaf
    own = leaf.detach()
    if leaf.is_floating_point() or leaf.is_complex():
        own.requires_grad_(_with_grad())
    return own.clone()


def _with_grad() -> bool:
    return torch.is_grad_enabled()


def _versions(leaves: Sequence[Any]) -> list[int]:
    return [leaf._version if isinstance(leaf, Tensor) else 0 for leaf in leaves]


def _autocast() -> tuple[Any, ...]:
    kinds = [kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
    return tuple((kind, torch.get_autocast_dtype(kind)) for kind in kinds)


def _other_generators() -> tuple[Any, ...]:
    """Return the state of the generators of Python and NumPy."""
    numpy = sys.modules.get("numpy")
    drawn = () if numpy is None else numpy.random.get_state()
    return random.getstate(), *(x.tobytes() if hasattr(x, "tobytes") else x for x in drawn)


def _look(leaf: Any) -> Hashable:
    if isinstance(leaf, Tensor):
        return tuple(leaf.shape), leaf.dtype
    return repr(leaf)
