"""A piece of a whole model: some of its modules, called as its own forward calls them."""

import copy
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from synth.errors import SynthError

from .containers import closed, opened
from .origin import Origin
from .steps import ConstantRef, DeviceRef, ParameterRef, RecordedCall, TensorRef
from .structure import Structure, look_of
from .torch_functions import described


class Table:
    """A constant of a recording, once on each device, shared by all pieces."""

    def __init__(self, tensor: Tensor) -> None:
        self._copies = {tensor.device: tensor}

    def on(self, device: torch.device) -> Tensor:
        """Return it on a device."""
        if device not in self._copies:
            self._copies[device] = next(iter(self._copies.values())).to(device)
        return self._copies[device]

    def __deepcopy__(self, memo: Any) -> Self:
        """A copy of a piece has the same constants."""
        return self


def make_tables(constants: Sequence[Tensor]) -> list[Table]:
    """Return a table for each constant, the same one for those of equal bytes.

    A model that slices its angles in each block has one table of them, and blocks of equal cost.
    """
    by_look: defaultdict[Hashable, list[tuple[Tensor, Table]]] = defaultdict(list)
    return [_table(tensor, by_look[_bytes_look(tensor)]) for tensor in constants]


def _table(tensor: Tensor, alike: list[tuple[Tensor, Table]]) -> Table:
    """Return the table of equal bytes among those alike, or a new one, which is added to them."""
    found = next((t for other, t in alike if torch.equal(_bytes(other), _bytes(tensor))), None)
    if found is None:
        found = Table(tensor)
        alike.append((tensor, found))
    return found


def _bytes_look(tensor: Tensor) -> Hashable:
    """A key that is equal for tensors whose bytes can be compared."""
    if type(tensor) is not Tensor or tensor.layout != torch.strided or tensor.is_meta:
        return id(tensor)
    return tuple(tensor.shape), tensor.dtype, tensor.device, tensor.stride()


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.resolve_conj().resolve_neg().flatten().view(torch.uint8)


class _Call(NamedTuple):
    """A step with places in the piece's list of tensors instead of the recording's numbers."""

    module: str | None  # among the parts of the piece
    function: Callable[..., Any] | None
    tensors: tuple[tuple[int, int], ...]  # (leaf, place in the list)
    leaves: tuple[Any, ...]
    devices: tuple[int, ...]
    constants: tuple[tuple[int, int], ...]  # (leaf, place among the piece's constants)
    parameters: tuple[tuple[int, str], ...]
    spec: pytree.TreeSpec
    outputs: tuple[tuple[int, int], ...]  # (leaf of the output, place in the list)
    dropped: tuple[int, ...]
    with_grad: bool
    autocast: torch.dtype | Literal[False] | None
    fills: bool

    def __deepcopy__(self, memo: Any) -> Self:
        """A copy calls the same function; getters of torch, such as that of `mT`, have no copy."""
        return self._replace(leaves=copy.deepcopy(self.leaves, memo))


class Piece(nn.Module):
    """Consecutive steps of a model's forward, as a layer of a pipeline.

    It takes the tensors that it needs of what came before, and returns those that are needed after
    it: one tensor, or a tuple of them. The last piece takes the targets as well, and returns the
    loss. `steps` describes the code, so that equal pieces have equal signatures.
    """

    def __init__(
        self,
        name: str,
        model: nn.Module,
        steps: Sequence[RecordedCall],
        given: Sequence[int],
        returned: Sequence[int],
        tables: Sequence[Table],
        shapes: Sequence[str],
        *,
        inputs: Structure | None,
        targets: Structure | None,
        origin: Origin | None = None,
    ) -> None:
        """Take the steps' modules and parameters out of the model.

        Args:
            name: of the piece.
            model: the whole model.
            steps: of the recording.
            given: the numbers of the tensors that it is given, in order.
            returned: the numbers of those that it returns.
            tables: all constants of the recording.
            shapes: of all values of the recording, in words.
            inputs: their structure, of the first piece.
            targets: their structure, of the last piece.
            origin: describes the whole model; None: this does.
        """
        super().__init__()
        self._name = name
        self._origin = origin or Origin.of(model)
        self.parts = nn.Module()
        self._inputs, self._targets = inputs, targets
        self._names: dict[str, str] = {}
        self._modules_of: dict[str, str] = {}
        for step in steps:
            if step.module is not None and step.module not in self._modules_of:
                self._add_module(step.module, model.get_submodule(step.module))
            for parameter in step.parameters:
                self._add_parameter(parameter, model)
        compiler = _Compiler(self._modules_of, self._names, given, returned)
        self._calls = compiler.compiled(steps)
        self._places = tuple(compiler.places[number] for number in returned)
        self._size = compiler.size
        self._given = tuple(
            shapes[n] for n in (given[: len(given) - targets.count] if targets else given)
        )
        self.training = self.parts.training = model.training
        self._modes = self._present_modes() if any(s.in_mode for s in steps) else None
        self._returned = tuple(shapes[number] for number in returned)
        self._tables = tuple(tables[number] for number in compiler.constants)
        self._device = torch.device("cpu")
        self._placed = tuple(table.on(self._device) for table in self._tables)
        self.steps = compiler.text(self._places, [id(table) for table in self._tables])

    @property
    def name(self) -> str:
        """Its name in the profile."""
        return self._name

    @property
    def origin(self) -> Origin:
        """The whole model that it is of."""
        return self._origin

    @property
    def returned(self) -> tuple[str, ...]:
        """The shapes of what it returns, in words."""
        return self._returned

    @property
    def constants(self) -> tuple[Tensor, ...]:
        """The tensors that depend on no input and no parameter."""
        return self._placed

    def original_name(self, parameter: str) -> str:
        """Return the name that a parameter or buffer of the piece has in the whole model."""
        inside = parameter.removeprefix("parts.")
        for original, own in {**self._names, **self._modules_of}.items():
            if inside == own or inside.startswith(f"{own}."):
                return original + inside[len(own) :]
        raise KeyError(parameter)

    def names_of(self, parameter: str) -> tuple[str, ...]:
        """Return all names that a parameter or buffer has in the whole model, the first one first.

        A tied parameter has several.
        """
        original = self.original_name(parameter)
        return self._origin.names.get(original, (original,))

    def trained_names(self) -> Iterator[tuple[str, ...]]:
        """Yield the names that each trained parameter has in the whole model."""
        for name, parameter in self.named_parameters():
            if parameter.requires_grad:
                yield self.names_of(name)

    def forward(self, *given: Any) -> Any:
        """Run the steps.

        Raises:
            SynthError: it is given something of another form than it was cut for, or code of its
                that depends on the mode was recorded in another one.
        """
        if self._modes is not None and self._modes != self._present_modes():
            raise SynthError(
                f"{self._name} has code outside of modules, such as dropout, that was recorded in "
                f"another mode: cut the model again after `train()` or `eval()`"
            )
        tensors = self._tensors_of(given)
        values: list[Any] = [*tensors, *[None] * (self._size - len(tensors))]
        for call in self._calls:
            self._run(call, values)
        outputs = tuple([values[place] for place in self._places])
        return outputs[0] if len(outputs) == 1 else outputs

    def _present_modes(self) -> tuple[bool, ...]:
        return self.training, *(part.training for part in self.parts.children())

    def _tensors_of(self, given: tuple[Any, ...]) -> list[Tensor]:
        """Return the tensors in the order of the recording."""
        if self._inputs is not None:
            return self._inputs.tensors_of(given, self._name)
        count = len(self._given)
        found = tuple(
            look_of(leaf) if isinstance(leaf, Tensor) else type(leaf).__name__
            for leaf in given[:count]
        )
        rest = given[count:]
        if found != self._given or len(rest) != (self._targets is not None):
            raise SynthError(
                f"{self._name} is given {' and '.join(found) or 'nothing'} and {len(rest)} more, "
                f"and was cut for {' and '.join(self._given)}"
                f"{' and the targets' if self._targets is not None else ''}: cut again for others"
            )
        if self._targets is None:
            return list(given)
        return [*given[:count], *self._targets.tensors_of(rest[0], self._name)]

    def _run(self, call: _Call, values: list[Any]) -> None:
        leaves = list(call.leaves)
        for leaf, place in call.tensors:
            leaves[leaf] = values[place]
        for leaf, place in call.constants:
            leaves[leaf] = self._placed[place]
        for leaf, name in call.parameters:
            leaves[leaf] = getattr(self.parts, name)
        for leaf in call.devices:
            leaves[leaf] = self._device
        args, kwargs = closed(pytree.tree_unflatten(leaves, call.spec))
        with nullcontext() if call.with_grad else torch.no_grad(), self._precision(call.autocast):
            run = call.function or getattr(self.parts, call.module or "")
            result = run(*args, **kwargs)
        if call.outputs:
            if call.fills:
                result = opened((result, (args, kwargs)))
            found = [result] if isinstance(result, Tensor) else pytree.tree_leaves(result)
            for leaf, place in call.outputs:
                values[place] = found[leaf]
        for place in call.dropped:
            values[place] = None

    def _precision(
        self, autocast: torch.dtype | Literal[False] | None
    ) -> AbstractContextManager[object]:
        if autocast is None:
            return nullcontext()
        return torch.autocast(self._device.type, autocast or None, enabled=bool(autocast))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move the constants along, whose dtype stays as it is."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._device = fn(torch.empty(0, device=self._device)).device
        self._placed = tuple(table.on(self._device) for table in self._tables)
        return self

    def _add_module(self, path: str, module: nn.Module) -> None:
        own = self._unused(path)
        self._modules_of[path] = own
        self.parts.add_module(own, module)

    def _add_parameter(self, path: str, model: nn.Module) -> None:
        """Share a parameter, or a buffer, of the model."""
        if path not in self._names:
            owner, _, last = path.rpartition(".")
            tensor = getattr(model.get_submodule(owner), last)
            self._names[path] = own = self._unused(path)
            if isinstance(tensor, nn.Parameter):
                self.parts.register_parameter(own, tensor)
            else:
                self.parts.register_buffer(own, tensor)

    def _unused(self, path: str) -> str:
        """Name a part by the last word of its path, which equal layers have in common."""
        words = [word for word in path.split(".") if not word.isdigit()]
        base = words[-1] if words else "layer"
        name, count = base, 1
        while hasattr(self.parts, name):
            count += 1
            name = f"{base}_{count}"
        return name


class _Compiler:
    """Gives the values of some steps places in a list, in the order in which they are made."""

    def __init__(
        self,
        modules: Mapping[str, str],
        parameters: Mapping[str, str],
        given: Sequence[int],
        returned: Sequence[int],
    ) -> None:
        self._modules, self._parameters = modules, parameters
        self.places = {number: place for place, number in enumerate(given)}
        self.size = len(given)
        self.constants: list[int] = []
        self._returned = set(returned)
        self._lines: list[str] = []

    def compiled(self, steps: Sequence[RecordedCall]) -> tuple[_Call, ...]:
        """Return the steps as calls, which let each value go after the last one that reads it."""
        calls = [self._call(step) for step in steps]
        seen, result = {self.places[number] for number in self._returned}, []
        for call in reversed(calls):
            touched = {place for _, place in (*call.tensors, *call.outputs)}
            result.append(call._replace(dropped=tuple(sorted(touched - seen))))
            seen |= touched
        return tuple(reversed(result))

    def _call(self, step: RecordedCall) -> _Call:
        leaves = list(enumerate(step.leaves))
        tensors = tuple((i, self.places[x.number]) for i, x in leaves if isinstance(x, TensorRef))
        constants = tuple((i, self._constant(x)) for i, x in leaves if isinstance(x, ConstantRef))
        names = [(i, self._parameters[x.name]) for i, x in leaves if isinstance(x, ParameterRef)]
        outputs = tuple((leaf, self._place(number)) for leaf, number in step.outputs)
        module = None if step.module is None else self._modules[step.module]
        plain = tuple(None if isinstance(x, _REFERENCES) else x for _, x in leaves)
        devices = tuple(i for i, x in leaves if isinstance(x, DeviceRef))
        described_leaves = (tensors, constants, names, devices, plain, step.spec, outputs)
        shown = described(step.function) if module is None else module
        self._lines.append(
            f"{shown} {described_leaves} {step.with_grad} {step.autocast} {step.fills}"
        )
        return _Call(
            module,
            step.function,
            tensors,
            plain,
            devices,
            constants,
            tuple(names),
            step.spec,
            outputs,
            (),
            step.with_grad,
            step.autocast,
            step.fills,
        )

    def text(self, places: Sequence[int], constants: Sequence[int]) -> str:
        """Describe the steps; equal texts are equal code."""
        return "\n".join([*self._lines, f"returns {places} of {self.size}, constants {constants}"])

    def _place(self, number: int) -> int:
        if number not in self.places:
            self.places[number] = self.size
            self.size += 1
        return self.places[number]

    def _constant(self, constant: ConstantRef) -> int:
        if constant.number not in self.constants:
            self.constants.append(constant.number)
        return self.constants.index(constant.number)


_REFERENCES = (TensorRef, ConstantRef, ParameterRef, DeviceRef)
