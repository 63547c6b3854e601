"""Records one forward of a whole model: calls of its modules, and the functions between them.

The model's own code runs with real tensors, so its control flow, its shapes and its masks are what
they are in training. What depends on no input and no parameter is computed once, and is a constant
of the recording. Modules are called whole, as the leaves of `torch.fx` are, with whose tracer this
shares the way calls are intercepted (Reed, DeVito, He, Ussery and Ansel, "torch.fx: Practical
Program Capture and Transformation for Deep Learning in Python", MLSys 2022).
"""

import traceback
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock, get_ident
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils import _pytree as pytree

from synth.errors import SynthError

from ..signature import layer_signature
from .steps import ConstantRef, DeviceRef, ParameterRef, RecordedCall, RecordedForward, TensorRef

# They make numbers of tensors, on which the code that follows may depend.
_READERS = frozenset(["item", "tolist", "numpy", "is_nonzero", "equal", "allclose"]) | {
    f"__{name}__" for name in ("array", "bool", "int", "float", "index", "complex", "contains")
}
_IN_PLACE = frozenset(
    f"__{name}__"
    for name in ("setitem", "iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow")
) | {f"__{name}__" for name in ("iand", "ior", "ixor", "ilshift", "irshift")}

# Of one argument they take the form alone: of the second, or of the first.
_IN_FORM_OF = frozenset(["type_as", "expand_as", "view_as", "reshape_as"])
_NEW_IN_FORM_OF = frozenset(
    ["zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full", "new_tensor"]
)

_patching = Lock()


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
    with torch.enable_grad(), _intercepted(recorder, closed), recorder:
        loss = call(given[0][0], given[1][0])
    return recorder.finish(given[0][1], given[1][1], loss)


class _Recorder(TorchFunctionMode):
    """Sees each function of torch that is called outside of the closed modules."""

    def __init__(self, model: nn.Module, closed: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self._names = {id(module): name for name, module in reversed(list(closed.items()))}
        self._parameters = {id(p): name for name, p in model.named_parameters()}
        self._device = next((p.device for p in model.parameters()), torch.device("cpu"))
        self._steps: list[RecordedCall] = []
        self._numbers: dict[int, int] = {}
        self._kept: list[Tensor] = []  # an id is a tensor's while it lives
        self._shapes: list[str] = []
        self._constants: list[Tensor] = []
        self._constant_numbers: dict[int, int] = {}
        self._like: dict[Hashable, Any] = {}
        self.is_inside = False

    def enter(self, tree: Any) -> tuple[Any, tuple[int, ...]]:
        """Return inputs as tensors of the recording's own, and their numbers."""
        leaves, spec = pytree.tree_flatten(tree)
        own = [leaf.detach().clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        numbers = tuple(self._add(leaf) for leaf in own if isinstance(leaf, Tensor))
        return pytree.tree_unflatten(own, spec), numbers

    def finish(
        self, inputs: tuple[int, ...], targets: tuple[int, ...], loss: Any
    ) -> RecordedForward:
        """Return what was recorded.

        Raises:
            SynthError: the loss is no scalar that depends on the model.
        """
        number = self._numbers.get(id(loss))
        if number is None or not loss.requires_grad:
            raise SynthError(
                "the loss of the whole model cannot be followed to its parameters: check that it "
                "is computed by functions of torch, without `detach`, `item` or `no_grad`"
            )
        return RecordedForward(
            tuple(self._steps),
            inputs,
            targets,
            number,
            tuple(self._constants),
            tuple(self._shapes),
        )

    def call_module(
        self, module: nn.Module, run: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        """Call a closed module, and record the call."""
        name = self._names[id(module)]
        leaves, spec = pytree.tree_flatten((args, kwargs))
        references = tuple(self._reference(leaf, name) for leaf in leaves)
        output, tree = pytree.tree_flatten(self._output(module, run, args, kwargs))
        own = [_as_output(leaf) for leaf in output]
        self._append(RecordedCall(name, None, references, spec, (), with_grad=_with_grad()), own)
        return pytree.tree_unflatten(own, tree)

    def _output(self, module: nn.Module, run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run a module, or return what an equal one gave for equal shapes."""
        key = None
        if next(module.parameters(), None) is not None:
            looks = [_look(leaf) for leaf in pytree.tree_leaves((args, kwargs))]
            key = (layer_signature(module, with_places=False), tuple(looks))
            if key in self._like:
                return self._like[key]
        self.is_inside = True
        try:
            with torch.no_grad():
                output = run(module, *args, **kwargs)
        finally:
            self.is_inside = False
        if key is not None:
            self._like[key] = output
        return output

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.is_inside:
            return func(*args, **kwargs)
        leaves, spec = pytree.tree_flatten((args, kwargs))
        name = getattr(func, "__name__", "")
        numbers_of = _sources(name, args, leaves)
        if not any(id(x) in self._numbers or id(x) in self._parameters for x in numbers_of):
            return func(*args, **kwargs)
        if name in _READERS:
            raise SynthError(
                f"the model's code outside of its layers reads numbers of a tensor that depends on "
                f"the inputs ({name} at {_place()}), so its steps may differ from batch to batch: "
                f"move this code into a layer, or give a list of layers"
            )
        mutates = _mutates(name, kwargs)
        if mutates and args and isinstance(args[0], Tensor):
            self._make_own(args[0])
        references = tuple(self._reference(leaf, name) for leaf in leaves)
        result = func(*args, **kwargs)
        outputs = pytree.tree_leaves(result)
        if mutates or any(isinstance(leaf, Tensor) for leaf in outputs):
            step = RecordedCall(None, func, references, spec, (), mutates, _with_grad())
            self._append(step, outputs)
        return result

    def _make_own(self, tensor: Tensor) -> None:
        """Make a value of a constant that is about to be changed: each micro-batch has a copy."""
        if id(tensor) in self._numbers or id(tensor) in self._parameters:
            return
        copied = self._reference(tensor.detach().clone(), "clone")
        leaves, spec = pytree.tree_flatten(((copied,), {}))
        self._append(RecordedCall(None, torch.clone, tuple(leaves), spec, ()), [tensor])

    def _append(self, step: RecordedCall, outputs: list[Any]) -> None:
        numbers = tuple(
            (place, self._add(leaf))
            for place, leaf in enumerate(outputs)
            if isinstance(leaf, Tensor) and id(leaf) not in self._parameters
        )
        self._steps.append(
            RecordedCall(
                step.module,
                step.function,
                step.leaves,
                step.spec,
                numbers,
                step.mutates,
                step.with_grad,
            )
        )

    def _add(self, tensor: Tensor) -> int:
        number = len(self._kept)
        self._kept.append(tensor)
        self._shapes.append(f"{list(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}")
        self._numbers[id(tensor)] = number
        return number

    def _reference(self, leaf: Any, receiver: str) -> Any:
        """Return what stands for a leaf of arguments.

        Raises:
            SynthError: it is trained, and it is unknown how it was computed.
        """
        if isinstance(leaf, torch.device) and leaf.type == self._device.type:
            return DeviceRef()
        if not isinstance(leaf, Tensor):
            return leaf
        if id(leaf) in self._numbers:
            return TensorRef(self._numbers[id(leaf)])
        if id(leaf) in self._parameters:
            return ParameterRef(self._parameters[id(leaf)])
        if leaf.requires_grad:
            raise SynthError(
                f"a tensor of shape {list(leaf.shape)} that {receiver} is given (at {_place()}) "
                f"was computed outside of the model's layers in a way that cannot be followed, "
                f"such as an autograd function of one's own or vmap: move this code into a "
                f"layer, or give a list of layers"
            )
        number = self._constant_numbers.get(id(leaf))
        if number is None:
            number = self._constant_numbers[id(leaf)] = len(self._constants)
            self._constants.append(leaf)
        return ConstantRef(number)


@contextmanager
def _intercepted(recorder: _Recorder, closed: Mapping[str, nn.Module]) -> Iterator[None]:
    """Within it calls of closed modules go to the recorder."""
    with _patching:
        original, watched = nn.Module.__call__, {id(module) for module in closed.values()}
        own = get_ident()

        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            is_recorded = id(module) in watched and not recorder.is_inside
            if is_recorded and get_ident() == own:
                return recorder.call_module(module, original, args, kwargs)
            return original(module, *args, **kwargs)

        nn.Module.__call__ = call  # type: ignore[method-assign]
        try:
            yield
        finally:
            nn.Module.__call__ = original  # type: ignore[method-assign]


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


def _mutates(name: str, kwargs: Mapping[str, Any]) -> bool:
    is_named_so = name.endswith("_") and not name.endswith("__")
    return name in _IN_PLACE or is_named_so or kwargs.get("out") is not None


def _sources(name: str, args: Sequence[Any], leaves: Sequence[Any]) -> Sequence[Any]:
    """Return the arguments whose numbers the result depends on."""
    if name in _IN_FORM_OF:
        return args[:1]
    return args[1:] if name in _NEW_IN_FORM_OF else leaves


def _look(leaf: Any) -> Hashable:
    if isinstance(leaf, Tensor):
        return tuple(leaf.shape), leaf.dtype
    return repr(leaf)


def described(function: Any) -> str:
    """Return the name of a function of torch, equal in each process."""
    name: str | None = resolve_name(function)
    return name or getattr(function, "__qualname__", None) or repr(function)


def _place() -> str:
    """Name the line of the model's code that runs, the last one outside of torch and this file."""
    skipped = (str(Path(torch.__file__).parent), str(Path(__file__).parent))
    frames = traceback.extract_stack()
    frame = next((f for f in reversed(frames) if not f.filename.startswith(skipped)), frames[-1])
    return f"{frame.filename}, line {frame.lineno}"
