"""Dividing a layer's matrices over the processes of a rank: tensor parallelism.

After Shoeybi et al. 2019, "Megatron-LM" (arXiv 1909.08053), section 3: of two matrices in a row the
first is divided by columns and the second by rows, so that a block exchanges its output alone.
Parameters become DTensors. Norms, and what a plan of a layer does not name, stay whole on each
process.

Random numbers: all processes of a rank draw the same ones, because activations that are whole on
each must stay equal. Modules between two divided matrices need others on each; `DividedDraws` says
which modules these are. Tensors that are DTensors draw each their part by torch's own tracker on
CUDA, and the same numbers on the CPU.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, _random
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)

from synth.errors import SynthError

from ..execution.gradients.all_reduce import broadcast_from_first, is_sharded
from ..seeds import derive_seed, generators_of
from .cut.piece import Piece
from .gpt import GptBlock, GptEmbedding
from .head import Head
from .layered_stage import device_of
from .llama import LlamaBlock, LlamaEmbedding
from .transformers_plan import check_divides, transformers_plan
from .user_function import import_function, run_user_code


def divide_layers(layers: Iterable[nn.Module], group: DeviceMesh, address: str | None) -> None:
    """Divide layers in place; all processes of the group call this, with equal layers.

    Args:
        layers: with values, on their device.
        group: the processes, one dimension of a mesh.
        address: the user's function, which is called with each layer and the group, and divides the
            layer in place; None: built-in layers, and those of transformers with a plan.

    Raises:
        SynthError: a layer cannot be divided so.
    """
    if group.device_type != "cpu":
        # By itself torch makes its tracker at the first draw, with a broadcast over all processes,
        # which those of other ranks do not join.
        _random.manual_seed(torch.initial_seed(), group)
    own = None if address is None else import_function(address)
    for layer in layers:
        if own is None or address is None:
            _divide_built_in(layer, group)
            _make_equal(layer, group)
            continue
        shapes = _shapes(layer)
        made = run_user_code(address, lambda layer=layer: own(layer, group))  # type: ignore[misc]
        if made is not None and made is not layer:
            raise SynthError(
                f"{address} returned another module than its layer of class "
                f"{type(layer).__name__}; divide the layer in place, as parallelize_module does"
            )
        _check_whole(layer, address, shapes)
        _check_equal(layer, address)
        _make_equal(layer, group)


@torch.no_grad()
def _make_equal(layer: nn.Module, group: DeviceMesh) -> None:
    """Give what stays whole the values of the group's first process, as shards have them.

    Code that makes layers may draw numbers other than torch's, of which runs have no seed.
    """
    for tensor in (*layer.parameters(), *layer.buffers()):
        if is_sharded(tensor):
            continue
        first = tensor.detach().contiguous()  # the tensor itself, if it is so
        broadcast_from_first(group.get_group(), first)
        if not tensor.is_contiguous() and not torch.equal(tensor, first):
            tensor.copy_(first)


def _shapes(layer: nn.Module) -> dict[str, tuple[int, ...]]:
    """Return those of its parameters and buffers by name; a DTensor has that of the whole."""
    named = (*layer.named_parameters(), *layer.named_buffers())
    return {name: tuple(tensor.shape) for name, tensor in named}


def _check_whole(layer: nn.Module, address: str, before: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse shards that are plain tensors: norms and checkpoints would take each for the whole.

    Raises:
        SynthError: names the first of them, or one that is not there before or after.
    """
    after = _shapes(layer)
    for name in {**before, **after}:
        if name not in before or name not in after:
            verb = "added" if name in after else "removed"
            raise SynthError(
                f"{address} {verb} {name} of a {type(layer).__name__}; divide the tensors that the "
                f"model has, as parallelize_module does, so that checkpoints fit any division"
            )
        if after[name] != before[name]:
            raise SynthError(
                f"{address} made {name} of a {type(layer).__name__} a plain tensor of shape "
                f"{list(after[name])} in place of {list(before[name])}; divide it as a DTensor, as "
                f"parallelize_module does, so that norms and checkpoints know the whole"
            )


def _check_equal(layer: nn.Module, address: str) -> None:
    """Refuse shards of different sizes, whose heads and transfers would not fit each other."""
    for name, tensor in (*layer.named_parameters(), *layer.named_buffers()):
        if not isinstance(tensor, DTensor):
            continue
        for placement, parts in zip(tensor.placements, tensor.device_mesh.shape, strict=True):
            if isinstance(placement, Shard) and tensor.shape[placement.dim] % parts:
                raise SynthError(
                    f"{address} divides {name} of a {type(layer).__name__}, of shape "
                    f"{list(tensor.shape)}, over {parts} processes in unequal parts; give a number "
                    f"of processes that divides {tensor.shape[placement.dim]}, or leave it whole"
                )


def _divide_built_in(layer: nn.Module, group: DeviceMesh) -> None:
    plan = _plan_of(layer, group.size())
    if plan:
        parallelize_module(layer, group, dict(plan))


def _plan_of(layer: nn.Module, size: int) -> Mapping[str, ParallelStyle]:
    """Return the way in which each matrix of a layer is divided that needs no function."""
    if isinstance(layer, LlamaBlock):
        heads = [each.out_features // layer.head_width for each in (layer.q, layer.k)]
        check_divides(size, "heads", heads[0])
        check_divides(size, "heads of keys and values", heads[1])
        check_divides(size, "columns of the MLP", layer.up.out_features)
        return {
            **{name: ColwiseParallel() for name in ("q", "k", "v", "gate", "up")},
            **{name: RowwiseParallel() for name in ("attention_out", "down")},
        }
    if isinstance(layer, GptBlock):  # one product has q, k and v, so attention stays whole
        check_divides(size, "columns of the MLP", layer.mlp_in.out_features)
        return {"mlp_in": ColwiseParallel(), "mlp_out": RowwiseParallel()}
    if isinstance(layer, Head):
        check_divides(size, "words of the vocabulary", layer.logits.out_features)
        return {"logits": ColwiseParallel(output_layouts=Replicate())}
    if isinstance(layer, LlamaEmbedding | GptEmbedding):
        return {}
    if isinstance(layer, Piece) and (plan := transformers_plan(layer, size)) is not None:
        return plan
    raise SynthError(
        f"it is not known how {size} processes divide a layer of class {type(layer).__name__}; "
        f"give --parallelize FILE.py:FUNCTION, which divides a layer over a mesh"
    )


class DividedDraws(ParallelStyle):
    """The style of a module whose inputs are divided: each process draws random numbers of its own.

        parallelize_module(layer, mesh, {
            "up": ColwiseParallel(), "dropout": DividedDraws(), "down": RowwiseParallel(),
        })

    With equal numbers dropout would drop the same places of each part. Megatron-LM draws from
    another generator there (Shoeybi et al. 2019, arXiv 1909.08053, appendix B.2). A repeated F, as
    in recomputation, draws the same numbers again. Outside of `synth run` the processes of a group
    begin from the same state of torch's generators.
    """

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        place, kept = device_mesh.get_local_rank(), list[list[Tensor]]()

        def begin(module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
            generators = generators_of(device_of((*arguments, *keywords.values())))
            number = int(torch.randint(1 << 62, ()))
            kept.append([generator.get_state() for generator in generators])
            for generator in generators:
                generator.manual_seed(derive_seed(number, place))

        def end(
            module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any], output: Any
        ) -> None:
            generators = generators_of(device_of((*arguments, *keywords.values())))
            for generator, state in zip(generators, kept.pop(), strict=True):
                generator.set_state(state)

        module.register_forward_pre_hook(begin, with_kwargs=True)
        module.register_forward_hook(end, with_kwargs=True, always_call=True)
        return module
