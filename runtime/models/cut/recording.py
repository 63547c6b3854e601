"""A recording of one forward: its tensors by number, its steps and its constants."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from synth.errors import SynthError

from ...execution.base.boundary import way_to_trees
from .code_place import WAY_OUT, line_run
from .guard import Guard, storage_of
from .held_tensors import holds_tensors, tensors_in
from .steps import ConstantRef, DeviceRef, ParameterRef, RecordedCall, RecordedForward, TensorRef
from .structure import look_of


class ForwardRecording:
    """The state of a recording.

    Attributes:
        guard: sees what depends on inputs, parameters and random numbers.
        device: that of the model's parameters.
        overwritten: the storages of the model's buffers that the forward gives other constants.
    """

    def __init__(self, model: nn.Module) -> None:
        """Begin without steps; the model's parameters are known."""
        state = {id(tensor) for tensor in model.state_dict(keep_vars=True).values()}
        saved = [(name, buffer) for name, buffer in model.named_buffers() if id(buffer) in state]
        named = (*saved, *model.named_parameters())
        self._parameters = {id(tensor): name for name, tensor in named}
        self.guard = Guard()
        self.overwritten: set[int] = set()
        for _, tensor in named:
            self.guard.follow(tensor)
        devices = (p.device for p in model.parameters() if not p.is_meta)
        self.device = next(devices, torch.device("cpu"))
        self._steps: list[RecordedCall] = []
        self._numbers: dict[int, int] = {}
        self._kept: list[Tensor] = []  # an id is a tensor's while it lives
        self._shapes: list[str] = []
        self._aliases: dict[int, int] = {}
        self._constants: list[Tensor] = []
        self._constant_numbers: dict[int, int] = {}
        self._versions: list[tuple[int, str]] = []  # of the constants, and where they are read

    def enter(self, tree: Any) -> tuple[Any, tuple[int, ...]]:
        """Return inputs as tensors of the recording's own, and their numbers."""
        leaves, spec = pytree.tree_flatten(tree)
        for leaf in leaves:
            if not isinstance(leaf, Tensor) and holds_tensors(leaf):
                raise SynthError(
                    f"the inputs have a {type(leaf).__name__} that holds tensors, which cannot be "
                    f"followed: give tensors, or tuples and dictionaries of tensors; one that is "
                    f"the same for each micro-batch, such as a causal mask, is made in the forward "
                    f"of a module around the model{way_to_trees([leaf])}"
                )
        own = [leaf.detach().clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        numbers = tuple(self._add(leaf) for leaf in own if isinstance(leaf, Tensor))
        return pytree.tree_unflatten(own, spec), numbers

    def finish(
        self, inputs: tuple[int, ...], targets: tuple[int, ...], loss: Any
    ) -> RecordedForward:
        """Return what was recorded.

        Raises:
            SynthError: the loss is no scalar that depends on the model, or a constant was changed.
        """
        number = self._numbers.get(id(loss))
        if number is None or not loss.requires_grad:
            raise SynthError(
                "the loss of the whole model cannot be followed to its parameters: check that it "
                "is computed by functions of torch, without `detach`, `item` or `no_grad`"
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
            tuple(
                constant.clone() if storage_of(constant) in self.overwritten else constant
                for constant in self._constants
            ),
            tuple(self._shapes),
            tuple(storages),
        )

    def is_followed(self, leaf: Any) -> bool:
        """True for tensors that are recorded or parameters, and for slices with such bounds."""
        if isinstance(leaf, slice):
            return any(map(self.is_followed, (leaf.start, leaf.stop, leaf.step)))
        return id(leaf) in self._numbers or self.is_parameter(leaf)

    def is_parameter(self, leaf: Any) -> bool:
        """True for parameters of the model, and buffers that checkpoints have."""
        return id(leaf) in self._parameters

    def make_own(self, tensor: Tensor) -> None:
        """Make a value of a constant that is about to be changed: each micro-batch has a copy."""
        if self.is_followed(tensor) or self.guard.depends(tensor):
            return
        copied = self.reference(tensor.detach().clone(), "clone")
        leaves, spec = pytree.tree_flatten(((copied,), {}))
        self.append(RecordedCall(None, torch.clone, tuple(leaves), spec, ()), [tensor])

    def append(
        self, step: RecordedCall, outputs: Sequence[Any], mutated: Sequence[Tensor] = ()
    ) -> None:
        """Add a step with the tensors that it makes and changes.

        Raises:
            SynthError: it changes one that no step has made.
        """
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

    def reference(self, leaf: Any, receiver: str) -> Any:
        """Return what stands for a leaf of arguments.

        Raises:
            SynthError: it depends on inputs or parameters, and it is unknown how it was computed.
        """
        if isinstance(leaf, torch.Generator):
            raise SynthError(
                f"{receiver} (at {line_run()}) draws from a generator of its own, whose state the "
                f"layers would not share: draw from torch's default generator, or {WAY_OUT}"
            )
        if isinstance(leaf, torch.device) and leaf.type == self.device.type:
            return DeviceRef()
        if not isinstance(leaf, Tensor):
            held = next((x for x in tensors_in(leaf) if self.depends(x)), None)
            if held is None:
                return leaf
            raise SynthError(
                f"{receiver} is given a {type(leaf).__name__} (at {line_run()}) that holds "
                f"tensors, which cannot be followed: give tensors, tuples or dictionaries, or "
                f"{WAY_OUT}{way_to_trees([leaf])}"
            )
        if torch._C._functorch.is_functorch_wrapped_tensor(leaf):
            raise SynthError(
                f"{receiver} is called within a transform of torch.func, such as vmap (at "
                f"{line_run()}), which cannot be followed: {WAY_OUT}"
            )
        if id(leaf) in self._numbers:
            return TensorRef(self._numbers[id(leaf)])
        if id(leaf) in self._parameters:
            return ParameterRef(self._parameters[id(leaf)])
        if self.depends(leaf):
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

    def depends(self, tensor: Tensor) -> bool:
        """True if a tensor depends on inputs, parameters or random numbers."""
        return self.is_followed(tensor) or tensor.requires_grad or self.guard.depends(tensor)

    def alias(self, number: int, source: Any) -> None:
        """Note that a tensor shares the memory of another one, if that one is recorded."""
        if id(source) in self._numbers:
            origin = self._numbers[id(source)]
            self._aliases[number] = self._aliases.get(origin, origin)

    def __len__(self) -> int:
        """The number of tensors."""
        return len(self._kept)
