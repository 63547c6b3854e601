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
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import CheckpointFunction

from synth.errors import SynthError

from ...execution.base.boundary import way_to_trees
from ...execution.base.without_graph import without_graph
from ..empty import has_empty_parameters
from ..signature import layer_signature
from .code_place import WAY_OUT, line_run, reads
from .containers import has_changed, has_containers, opened, refill
from .guard import storage_of
from .held_tensors import holds_tensors
from .intercept import intercepted
from .outline import has_form, run_empty
from .recording import ForwardRecording
from .steps import RecordedCall, RecordedForward
from .torch_functions import mutates, reads_numbers, sources

_BACKWARDS = (torch.autograd.grad, torch.autograd.backward, Tensor.backward)
_HOOKS = frozenset(["register_hook", "register_post_accumulate_grad_hook"])


def record(
    model: nn.Module,
    closed: Mapping[str, nn.Module],
    call: Callable[..., Any],
    inputs: Any,
    targets: Any,
) -> RecordedForward:
    """Record a forward.

    Args:
        closed: the modules that are called whole, by name. Equal ones that are given equal shapes
            are run once, unless the model fails then, as where it reads what each of them left in
            an attribute.
        call: runs the model with the inputs and the targets, and returns its loss.
        inputs: a tree of tensors.
        targets: a tree of tensors.

    Raises:
        SynthError: the code between the modules reads numbers of tensors that depend on the
            inputs, or a tensor cannot be followed.
    """
    try:
        return _recorded(_Recorder(model, closed), closed, call, inputs, targets)
    except SynthError:
        raise
    except Exception:  # of the user's code, of any class
        recorder = _Recorder(model, closed, runs_each=True)
        return _recorded(recorder, closed, call, inputs, targets)


def _recorded(
    recorder: "_Recorder",
    closed: Mapping[str, nn.Module],
    call: Callable[..., Any],
    inputs: Any,
    targets: Any,
) -> RecordedForward:
    given = [recorder.recording.enter(tree) for tree in (inputs, targets)]
    with torch.enable_grad(), intercepted(recorder, closed), recorder.guard, recorder:
        loss = call(given[0][0], given[1][0])
    recorder.check_end()
    return recorder.recording.finish(given[0][1], given[1][1], loss)


class _Recorder(TorchFunctionMode):
    """Sees each function of torch that is called outside of the closed modules."""

    def __init__(
        self, model: nn.Module, closed: Mapping[str, nn.Module], *, runs_each: bool = False
    ) -> None:
        """Begin without steps.

        Args:
            runs_each: run each closed module, also those that are equal.
        """
        super().__init__()
        self._runs_each = runs_each
        self._names = {id(module): name for name, module in reversed(list(closed.items()))}
        insides = {id(b) for module in closed.values() for b in module.buffers()}
        self._open_buffers = {name: (b, b._version) for name, b in model.named_buffers()
                              if id(b) not in insides}  # fmt: skip
        self._saved = model.state_dict().keys()
        self._is_training = model.training
        self.recording = ForwardRecording(model)
        self.guard = self.recording.guard
        self._like: dict[Hashable, _Output] = {}
        self._autocast = _autocast()
        self._drawn = _other_generators()
        self.is_inside = False

    def check_end(self) -> None:
        """Check what only the whole forward shows.

        Raises:
            SynthError: code outside of the layers changed a buffer, or drew numbers that are not
                torch's.
        """
        self._check_generators()
        for name, (buffer, version) in self._open_buffers.items():
            if buffer._version != version:
                raise SynthError(
                    f"the model's code outside of its layers changes the buffer {name}, of which "
                    f"each rank would have its own: {WAY_OUT}"
                )

    def _note_overwritten(self, tensor: Tensor) -> None:
        """Accept that a buffer that no checkpoint has gets other constants as a whole.

        Transformers do so with frequencies of angles, by the length of the sequences.
        """
        for name, (buffer, _) in self._open_buffers.items():
            if buffer is tensor and name not in self._saved:
                self._open_buffers[name] = (buffer, buffer._version)
                self.recording.overwritten.add(storage_of(buffer))

    def call_module(
        self, module: nn.Module, run: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        """Call a closed module, and record the call."""
        name = self._names[id(module)]
        if not all(map(self.recording.is_parameter, module.parameters())):
            raise SynthError(
                f"{name} is called with other parameters than its own (at {line_run()}), as by "
                f"torch.func.functional_call: {WAY_OUT}"
            )
        leaves, spec = pytree.tree_flatten(opened((args, kwargs)))
        references = tuple(self.recording.reference(leaf, name) for leaf in leaves)
        made = self._output(name, module, run, args, kwargs)
        output, tree = pytree.tree_flatten(made.value)
        given = {id(leaf) for leaf in leaves} if made.fills else set()
        own = [leaf if id(leaf) in given else _as_output(leaf) for leaf in output]
        new = [None if id(leaf) in given else leaf for leaf in own]
        changed = [leaves[place] for place in made.mutated]
        step = RecordedCall(
            name,
            None,
            references,
            spec,
            (),
            fills=made.fills,
            with_grad=_with_grad(),
            autocast=self._precision(),
        )
        first = len(self.recording)
        self.recording.append(step, new, changed)
        numbers = iter(range(first, len(self.recording)))
        for leaf, source in zip(new, made.aliases, strict=True):
            number = next(numbers) if isinstance(leaf, Tensor) else None
            if number is not None and source is not None:
                self.recording.alias(number, leaves[source])
        result = pytree.tree_unflatten(own, tree)
        if not made.fills:
            return result
        value, content = result
        refill((args, kwargs), content)
        return value

    def _output(
        self, name: str, module: nn.Module, run: Callable[..., Any], args: Any, kwargs: Any
    ) -> "_Output":
        """Run a module, or return what an equal one gave for equal shapes.

        One that differs in its place, such as `layer_idx`, is equal if it returns the same form.
        What is given a container is always run, as it may change that.
        """
        before = opened((args, kwargs))
        leaves = pytree.tree_leaves(before)
        looks = (*map(_look, leaves), *_autocast().items())
        keys: tuple[Hashable, ...] = ()
        can_fill = has_containers((*args, *kwargs.values()))
        is_alike = not (can_fill or self._runs_each)
        if is_alike and next(module.parameters(), None) is not None:
            keys = tuple((w, layer_signature(module, with_places=w), looks) for w in (True, False))
            exact, like = map(self._like.get, keys)
            if exact is None and like and self._has_form(like.value, module, args, kwargs):
                exact = like
            if exact is not None:
                self._like[keys[0]] = exact
                return exact
        with self._inside(), without_graph():
            versions = _versions(leaves)
            if has_empty_parameters(module):
                value, after = run_empty(module, before)
            else:
                value = run(module, *args, **kwargs)
                after = opened((args, kwargs))
            mutated = [place for place, v in enumerate(_versions(leaves)) if v != versions[place]]
        fills = can_fill and has_changed(before, after)
        if fills:
            value = (value, after)
        shared = {storage_of(x): place for place, x in enumerate(leaves) if isinstance(x, Tensor)}
        outputs = pytree.tree_leaves(value)
        for leaf in outputs:
            if not isinstance(leaf, Tensor) and holds_tensors(leaf):
                raise SynthError(
                    f"{name} returns a {type(leaf).__name__} that holds tensors, which cannot be "
                    f"followed: return tensors, or tuples and dictionaries of tensors"
                    f"{way_to_trees([leaf])}"
                )
        aliases = [shared.get(storage_of(x)) if isinstance(x, Tensor) else None for x in outputs]
        made = _Output(value, fills, tuple(mutated), tuple(aliases))
        for key in keys:
            self._like.setdefault(key, made)
        return made

    def _has_form(self, value: Any, module: nn.Module, args: Any, kwargs: Any) -> bool:
        with self._inside(), without_graph():
            return has_form(value, module, args, kwargs)

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
        is_followed = any(map(self.recording.is_followed, sources(name, args, kwargs)))
        if is_followed:
            self._check_call(func, name, leaves)
            if mutates(name, kwargs) and args and isinstance(args[0], Tensor):
                self.recording.make_own(args[0])
            references = tuple(self.recording.reference(leaf, name) for leaf in leaves)
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
            if name == "copy_":
                self._note_overwritten(args[0])
            return result
        if not is_followed:
            references = tuple(self.recording.reference(leaf, name) for leaf in leaves)
        mutated = [leaf for leaf, version in zip(leaves, versions, strict=True)
                   if isinstance(leaf, Tensor) and leaf._version != version]  # fmt: skip
        outputs = pytree.tree_leaves(result)
        if mutated or any(isinstance(leaf, Tensor) for leaf in outputs):
            in_mode = self.guard.draws or ("dropout" in name and not self._is_training)
            step = RecordedCall(
                None,
                func,
                references,
                spec,
                (),
                with_grad=_with_grad(),
                autocast=self._precision(),
                in_mode=in_mode,
            )
            self.recording.append(step, outputs, mutated)
        return result

    def _check_call(self, func: Any, name: str, leaves: Sequence[Any]) -> None:
        """Check that a function of torch makes no number or shape of what is followed.

        Raises:
            SynthError: it does, or it changes what a tensor is.
        """
        slices = [leaf for leaf in leaves if isinstance(leaf, slice)]
        if reads_numbers(name) or any(map(self.recording.is_followed, slices)):
            raise reads(name)
        if func in _BACKWARDS:
            raise SynthError(
                f"the model's code outside of its layers computes gradients (at {line_run()}), "
                f"which would need the graphs of several layers: {WAY_OUT}"
            )
        if name in _HOOKS:
            raise SynthError(
                f"the model's code outside of its layers hooks a gradient by {name} (at "
                f"{line_run()}), which no layer would do in its place: {WAY_OUT}"
            )
        if name == "__set__":
            raise SynthError(
                f"the model's code outside of its layers sets an attribute of a tensor (at "
                f"{line_run()}), such as `data` or `requires_grad`: {WAY_OUT}"
            )

    def _precision(self) -> torch.dtype | Literal[False] | None:
        """Return the autocast that the model's code turned on or off, as `RecordedCall` has it.

        Raises:
            SynthError: it is that of another device than the one that the model is on.
        """
        now, own = _autocast(), self.recording.device.type
        if now == self._autocast:
            return None
        if {**now, own: None} != {**self._autocast, own: None}:
            raise SynthError(
                f"the model's code turns autocast of another device than {own} on or off outside "
                f"of its layers (at {line_run()}): name the device of its tensors "
                f"(`x.device.type`), or {WAY_OUT}"
            )
        return now.get(own, False)

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


class _Output(NamedTuple):
    """The output of a module, and the places of arguments that it changed or returned.

    With containers in its arguments that it has changed, these, opened, are beside the output.
    """

    value: Any
    fills: bool
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


def _autocast() -> dict[str, torch.dtype]:
    """Return the dtypes of autocast, by the kinds of device for which it is on."""
    kinds = [kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
    return {kind: torch.get_autocast_dtype(kind) for kind in kinds}


def _other_generators() -> tuple[Any, ...]:
    """Return the state of the generators of Python and NumPy."""
    numpy = sys.modules.get("numpy")
    drawn = () if numpy is None else numpy.random.get_state()
    return random.getstate(), *(x.tobytes() if hasattr(x, "tobytes") else x for x in drawn)


def _look(leaf: Any) -> Hashable:
    if isinstance(leaf, Tensor):
        return tuple(leaf.shape), leaf.dtype
    return repr(leaf)
