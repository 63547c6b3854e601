"""Dividing a layer's matrices over the processes of a rank: tensor parallelism.

After Shoeybi et al. 2019, "Megatron-LM" (arXiv 1909.08053), section 3: of two matrices in a row the
first is divided by columns and the second by rows, so that a block exchanges its output alone.
Parameters become DTensors. Norms, and what a plan of a layer does not name, stay whole on each
process.
"""

from collections.abc import Iterable, Mapping, Sequence

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)

from synth.errors import SynthError

from .gpt import GptBlock, GptEmbedding
from .head import Head
from .llama import LlamaBlock, LlamaEmbedding
from .user_function import import_function, run_user_code


def divide_layers(layers: Iterable[nn.Module], group: DeviceMesh, address: str | None) -> None:
    """Divide layers in place; all processes of the group call this, with equal layers.

    Args:
        layers: with values, on their device.
        group: the processes, one dimension of a mesh.
        address: the user's function, which is called with each layer and the group, and divides the
            layer in place; None: built-in layers only.

    Raises:
        SynthError: a layer cannot be divided so.
    """
    own = None if address is None else import_function(address)
    for layer in layers:
        if own is None or address is None:
            _divide_built_in(layer, group)
            continue
        shapes = [tuple(parameter.shape) for parameter in layer.parameters()]
        made = run_user_code(address, lambda layer=layer: own(layer, group))  # type: ignore[misc]
        if made is not None and made is not layer:
            raise SynthError(
                f"{address} returned another module than its layer, a {type(layer).__name__}; "
                f"divide the layer in place, as parallelize_module does"
            )
        _check_whole(layer, address, shapes)


def _check_whole(layer: nn.Module, address: str, before: Sequence[tuple[int, ...]]) -> None:
    """Refuse shards that are plain tensors: norms and checkpoints would take each for the whole.

    Raises:
        SynthError: names the first of them. A DTensor has the shape of the whole.
    """
    for (name, parameter), shape in zip(layer.named_parameters(), before, strict=False):
        if tuple(parameter.shape) != shape:
            raise SynthError(
                f"{address} made {name} of a {type(layer).__name__} a plain tensor of shape "
                f"{list(parameter.shape)} in place of {list(shape)}; divide it as a DTensor, as "
                f"parallelize_module does, so that norms and checkpoints know the whole"
            )


def _divide_built_in(layer: nn.Module, group: DeviceMesh) -> None:
    plan = _plan_of(layer, group.size())
    if plan:
        parallelize_module(layer, group, dict(plan))


def _plan_of(layer: nn.Module, size: int) -> Mapping[str, ParallelStyle]:
    """Return the way in which each matrix of a built-in layer is divided."""
    if isinstance(layer, LlamaBlock):
        heads = [each.out_features // layer.head_width for each in (layer.q, layer.k)]
        _check_divides(size, "heads", heads[0])
        _check_divides(size, "heads of keys and values", heads[1])
        _check_divides(size, "columns of the MLP", layer.up.out_features)
        return {
            **{name: ColwiseParallel() for name in ("q", "k", "v", "gate", "up")},
            **{name: RowwiseParallel() for name in ("attention_out", "down")},
        }
    if isinstance(layer, GptBlock):  # one product has q, k and v, so attention stays whole
        _check_divides(size, "columns of the MLP", layer.mlp_in.out_features)
        return {"mlp_in": ColwiseParallel(), "mlp_out": RowwiseParallel()}
    if isinstance(layer, Head):
        _check_divides(size, "words of the vocabulary", layer.logits.out_features)
        return {"logits": ColwiseParallel(output_layouts=Replicate())}
    if isinstance(layer, LlamaEmbedding | GptEmbedding):
        return {}
    raise SynthError(
        f"a {type(layer).__name__} is no layer of synth's own, and how {size} processes divide it "
        f"is not known; give --parallelize FILE.py:FUNCTION, which divides a layer over a mesh"
    )


def _check_divides(size: int, what: str, count: int) -> None:
    if count % size:
        raise SynthError(
            f"a layer has {count} {what}, which {size} processes of a rank cannot divide equally; "
            f"profile with a number of processes that divides it"
        )
