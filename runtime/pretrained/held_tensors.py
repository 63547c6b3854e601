"""The parameters and buffers of a rank's layers, by their names in the whole model."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from ..checkpoint.optimizer_state import OptimizerState
from ..checkpoint.tensor_names import is_of, stored_tensors
from ..execution.weights.shared_tensor import SharedParameter
from ..models.cut import Origin, Piece


@dataclass(frozen=True)
class HeldTensor:
    """A parameter, or a buffer with a checkpoint.

    Attributes:
        names: in the whole model, the first of them first; a tied parameter has several.
        value: what training reads, in part if several ranks share it.
        updated: what the optimizer updates for it, such as a float32 master copy.
        made: its name in the state dict of its layer, if a hook of that made it of others; "": it
            is the layer's own.
    """

    names: tuple[str, ...]
    value: Tensor
    updated: Tensor
    made: str = ""

    @property
    def name(self) -> str:
        """Its first name."""
        return self.names[0]


def held_tensors(
    layers: Mapping[str, nn.Module],
    shared: Mapping[nn.Parameter, SharedParameter] | None = None,
    state: OptimizerState | None = None,
) -> dict[str, list[HeldTensor]]:
    """Return the tensors of each layer, by the layer's name.

    Tied parameters may be several: with weight passing each stage has its own.

    Args:
        layers: by name. A piece of a whole model knows the names that its tensors have there; of
            another layer they begin with the layer's name.
        shared: the parameters that are parts of flat ones.
        state: of the optimizer, which may update copies; None: it updates the parameters.
    """
    return {
        layer_name: [
            _held(names, tensor, shared or {}, state, made)
            for names, tensor, made in _named(layer_name, layer)
        ]
        for layer_name, layer in layers.items()
    }


def _named(layer_name: str, layer: nn.Module) -> Iterator[tuple[tuple[str, ...], Tensor, str]]:
    for own, tensor in stored_tensors(layer).items():
        made = "" if is_of(layer, tensor) else own
        if isinstance(layer, Piece):
            yield layer.names_of(own), tensor, made
        else:
            yield ((f"{layer_name}.{own}" if layer_name else own),), tensor, made


def _held(
    names: tuple[str, ...],
    tensor: Tensor,
    shared: Mapping[nn.Parameter, SharedParameter],
    state: OptimizerState | None,
    made: str,
) -> HeldTensor:
    if not isinstance(tensor, nn.Parameter):
        return HeldTensor(names, tensor, tensor, made)
    part = shared.get(tensor)
    value = tensor.detach() if part is None else part.within(part.part.detach())
    return HeldTensor(names, value, value if state is None else state.of(tensor)[0])


def origin_of(layers: Mapping[str, nn.Module]) -> Origin | None:
    """Return the whole model that layers are pieces of; None: they are layers of their own."""
    return next((layer.origin for layer in layers.values() if isinstance(layer, Piece)), None)
