"""A rank's tensors by the names of layer and parameter, with the optimizer state of each.

    model.block.0.mlp_in.weight
    optimizer.block.0.mlp_in.weight.exp_avg

Names do not contain stages or ranks, so that any plan of the same layers can read them. The tensor
of a parameter is the one that the optimizer updates (the float32 master copy, if there is one).
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from .optimizer_state import OptimizerState

TOGETHER = "(parameters)"
"""The key of the names of parameters whose state is kept at one of them."""


def named_tensors(
    layers: Mapping[str, nn.Module], optimizer_state: OptimizerState
) -> dict[str, Tensor]:
    """The live tensors of some layers: parameters, persistent buffers and optimizer state."""
    found: dict[str, Tensor] = {}
    for layer_name, layer in layers.items():
        for name, tensor in own_tensors(layer).items():
            value, state = (
                optimizer_state.of(tensor) if isinstance(tensor, nn.Parameter) else (tensor, {})
            )
            found[f"model.{layer_name}.{name}"] = value.detach()
            for key, moment in state.items():
                found[f"optimizer.{layer_name}.{name}.{key}"] = moment
    return found


def stored_tensors(layer: nn.Module) -> dict[str, Tensor]:
    """A layer's state dict without extra state that a module packs by itself."""
    state = layer.state_dict(keep_vars=True)
    return {name: tensor for name, tensor in state.items() if isinstance(tensor, Tensor)}


def is_of(layer: nn.Module, tensor: Tensor) -> bool:
    """True for a parameter or buffer of a layer; False for what a hook of its state dict made."""
    return any(tensor is own for own in (*layer.parameters(), *layer.buffers()))


def own_tensors(layer: nn.Module) -> dict[str, Tensor]:
    """A layer's parameters and persistent buffers, by the names of its state dict.

    Parameters of which a hook makes others there, such as a matrix that is stored in three parts,
    have the names of the module.
    """
    found = {name: x for name, x in stored_tensors(layer).items() if is_of(layer, x)}
    known = {id(tensor) for tensor in found.values()}
    named = layer.named_parameters(remove_duplicate=False)
    return found | {name: p for name, p in named if id(p) not in known}


def named_values(
    layers: Mapping[str, nn.Module], optimizer_state: OptimizerState
) -> dict[str, dict[str, Any]]:
    """The optimizer state that is no tensor, as JSON, by the names of `optimizer_prefixes`.

    State of all parameters together also has the names of these.
    """
    prefixes = optimizer_prefixes(layers)
    found = {name: dict(optimizer_state.values_of(p)) for name, p in prefixes.items()}
    of_all = {TOGETHER: sorted(prefixes)} if optimizer_state.is_joint else {}
    return {name: values | of_all for name, values in found.items() if values}


def optimizer_prefixes(layers: Mapping[str, nn.Module]) -> dict[str, nn.Parameter]:
    """The parameters, by the names of their optimizer state up to its last dot."""
    return {
        f"optimizer.{layer_name}.{name}": parameter
        for layer_name, layer in layers.items()
        for name, parameter in layer.named_parameters(remove_duplicate=False)
    }
