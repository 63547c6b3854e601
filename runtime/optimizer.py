"""The synchronous optimizer step: one global gradient norm, then each stage's AdamW."""

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import nn


class SynchronousAdamW:
    """AdamW over this rank's stages, with clipping by the norm of all ranks' gradients.

    Gradients are allocated once and zeroed in place, so that they are static memory, as the plan
    counts them.
    """

    def __init__(
        self,
        stages: Mapping[int, nn.Module],
        *,
        device: torch.device,
        learning_rate: float,
        clip_norm: float | None,
        weight_decay: float = 0.0,
    ) -> None:
        self._device = device
        self._clip_norm = clip_norm
        self._norm_known = False
        self._modules = list(stages.values())
        self._parameters = [p for m in stages.values() for p in m.parameters() if p.requires_grad]
        self._optimizers = {
            number: adamw(module, learning_rate, weight_decay) for number, module in stages.items()
        }

    def begin_step(self) -> None:
        """Zero the gradients."""
        self._norm_known = False
        for parameter in self._parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            else:
                parameter.grad.zero_()

    def synchronize(self) -> None:
        """Clip by the global norm, once per step; waits for all ranks."""
        if self._clip_norm is not None and not self._norm_known:
            self._clip(self._clip_norm)
            self._norm_known = True

    def step(self, stage: int) -> None:
        """STEP of one stage."""
        optimizer = self._optimizers[stage]
        if optimizer is not None:
            optimizer.step()

    @torch.no_grad()
    def _clip(self, clip_norm: float) -> None:
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        squared = torch.zeros((), device=self._device)
        for gradient in gradients:  # in float32, whatever the gradient is in
            squared += torch.linalg.vector_norm(gradient, dtype=torch.float32).square()
        dist.all_reduce(squared)
        nn.utils.clip_grads_with_norm_(self._parameters, clip_norm, squared.sqrt())

    def static_bytes(self) -> int:
        """Bytes of the parameters, buffers, gradients and optimizer state held now."""
        tensors = [t for m in self._modules for t in (*m.parameters(), *m.buffers())]
        tensors += [p.grad for p in self._parameters if p.grad is not None]
        for optimizer in self._optimizers.values():
            if optimizer is not None:
                for state in optimizer.state.values():
                    tensors += [t for t in state.values() if isinstance(t, torch.Tensor)]
        return sum(t.numel() * t.element_size() for t in tensors)


def adamw(
    module: nn.Module, learning_rate: float, weight_decay: float = 0.0
) -> torch.optim.AdamW | None:
    """AdamW over a module's trainable parameters, fused so that it needs no workspace.

    Returns:
        None if the module has no trainable parameters.
    """
    parameters = [p for p in module.parameters() if p.requires_grad]
    if not parameters:
        return None
    return torch.optim.AdamW(parameters, learning_rate, weight_decay=weight_decay, fused=True)


def adamw_static_bytes(module: nn.Module) -> int:
    """What parameters, buffers, gradients and AdamW state take: two moments and a step count."""
    total = sum(b.numel() * b.element_size() for b in module.buffers())
    for parameter in module.parameters():
        size = parameter.numel() * parameter.element_size()
        total += 4 * size + 4 if parameter.requires_grad else size
    return total
