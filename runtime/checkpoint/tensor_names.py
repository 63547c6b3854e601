"""A rank's tensors by the names of layer and parameter, with the optimizer state of each.

    model.block.0.mlp_in.weight
    optimizer.block.0.mlp_in.weight.exp_avg

Names do not contain stages or ranks, so that any plan of the same layers can read them. The tensor
of a parameter is the one that the optimizer updates (the float32 master copy, if there is one).
"""

from collections.abc import Mapping

from torch import Tensor, nn

from .optimizer_state import OptimizerState


def named_tensors(
    layers: Mapping[str, nn.Module], optimizer_state: OptimizerState
) -> dict[str, Tensor]:
    """The live tensors of some layers: parameters, persistent buffers and optimizer state."""
    found: dict[str, Tensor] = {}
    for layer_name, layer in layers.items():
        for name, tensor in layer.state_dict(keep_vars=True).items():
            if not isinstance(tensor, Tensor):
                continue  # extra state that a module packs by itself: not supported
            value, state = (
                optimizer_state.of(tensor) if isinstance(tensor, nn.Parameter) else (tensor, {})
            )
            found[f"model.{layer_name}.{name}"] = value.detach()
            for key, moment in state.items():
                found[f"optimizer.{layer_name}.{name}.{key}"] = moment
    return found


def optimizer_prefixes(layers: Mapping[str, nn.Module]) -> dict[str, nn.Parameter]:
    """The parameters, by the names of their optimizer state up to its last dot."""
    return {
        f"optimizer.{layer_name}.{name}": parameter
        for layer_name, layer in layers.items()
        for name, parameter in layer.named_parameters(remove_duplicate=False)
    }
