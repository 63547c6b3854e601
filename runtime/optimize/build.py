"""Builds the optimizer steps of a rank from an optimizer's description and its modules."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from synth.errors import SynthError
from synth.profile.optimizer import OptimizerSpec

from ..execution.gradients.all_reduce import is_sharded, local_part
from .flush_free import FlushFreeStep
from .gradients import Gradients, Owned, widen_gradients
from .norm import GradientNorm
from .post_validation import PostValidatedStep
from .settings import StepSettings
from .snapshot import IterationSnapshot
from .stage_optimizer import stage_optimizers
from .synchronous import SynchronousStep

StageSteps = SynchronousStep | PostValidatedStep | FlushFreeStep


def held_bytes(modules: Iterable[nn.Module], steps: StageSteps | None = None) -> int:
    """The allocated bytes of parameters, buffers, gradients and optimizer state.

    Memory that several tensors share counts once, as a whole.

    Args:
        steps: the steps whose optimizer state is counted; None: it is not counted.
    """
    tensors = {t for module in modules for t in (*module.parameters(), *module.buffers())}
    tensors |= {t.grad for t in tensors if t.grad is not None}
    own = sum(dict(map(_memory, tensors)).values())
    optimizers = () if steps is None else steps.optimizers.values()
    return own + sum(optimizer.state_bytes() for optimizer in optimizers)


def _memory(tensor: Tensor) -> tuple[object, int]:
    """A key of a tensor's memory, and its bytes."""
    if is_sharded(tensor) or tensor.layout != torch.strided:
        own = local_part(tensor)
        return id(tensor), own.numel() * own.element_size()
    storage = tensor.untyped_storage()
    return storage.data_ptr() or id(tensor), storage.nbytes()


def build_steps(
    modules: Mapping[int, nn.Module],
    spec: OptimizerSpec,
    settings: StepSettings,
    *,
    device: torch.device,
    clip_norm: float | None = None,
    skip_nonfinite: bool = True,
    group: Any = None,
    owned: Owned | None = None,
) -> StageSteps:
    """Make the optimizer steps of a rank.

    Args:
        modules: the rank's stages, by number; a parameter in several of them is updated once.
        clip_norm: the largest global gradient norm; None: no clipping.
        skip_nonfinite: True if a step is skipped, on all ranks, when a gradient is not finite.
        group: all ranks of the pipeline, used for the norm alone: `Pipeline.separate_group()`;
            None: this process is alone.
        owned: see `Gradients`.

    Raises:
        SynthError: post-validation is requested, but there is nothing to validate.
    """
    if spec.float32_gradients:
        widen_gradients(modules.values())
    needs_norm = clip_norm is not None or skip_nonfinite
    norm = GradientNorm(clip_norm, device, group) if needs_norm else None
    gradients = Gradients(modules, owned)
    optimizers = stage_optimizers(modules, spec)
    if not spec.post_validation:
        return SynchronousStep(optimizers, gradients, settings, norm)
    if norm is None:
        raise SynthError(
            "post-validation was asked for, and there is nothing to validate: neither clipping nor "
            "skipping; steps do not wait for each other then anyway, so leave it out"
        )
    snapshot = IterationSnapshot(modules.values(), device)
    return PostValidatedStep(optimizers, gradients, settings, norm, snapshot)
