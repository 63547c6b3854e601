"""A rank's gradients: allocated once, zeroed in place, scaled in place."""

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor, nn

from synth.errors import SynthError

from ..execution.gradients.all_reduce import local_part
from ..split import gradient_dtype
from .multi_tensor import group_alike
from .norm import GradientNorm

_NARROW = (torch.bfloat16, torch.float16)

Owned = Callable[[nn.Parameter], bool]


class Gradients:
    """The gradients of the trainable parameters of a rank's modules, in the modules' order."""

    def __init__(self, modules: Mapping[int, nn.Module], owned: Owned | None = None) -> None:
        """Find the parameters.

        Args:
            modules: a rank's stages.
            owned: returns True if this rank counts a parameter in the global norm. The norm must
                count each parameter of the model once: of copies on several ranks (replicas, tied
                weights) on one rank. None: all are this rank's own.
        """
        trainable = [p for m in modules.values() for p in m.parameters() if p.requires_grad]
        self._parameters = list(dict.fromkeys(trainable))
        self._owned = [p for p in self._parameters if owned is None or owned(p)]
        self._consumed = True

    def open(self) -> None:
        """Zero the gradients that a step has used; those that accumulate for a later step stay."""
        if not self._consumed:
            return
        for group in group_alike(self._present()):
            torch._foreach_zero_(group)
        for parameter in self._parameters:
            if parameter.grad is None:
                parameter.grad = zero_gradient(parameter)
        self._consumed = False

    def consume(self) -> None:
        """Mark the gradients as used: the next `open` zeroes them."""
        self._consumed = True

    def counted(self) -> list[Tensor]:
        """The gradients that this rank contributes to the global norm."""
        return [p.grad for p in self._owned if p.grad is not None]

    @torch.no_grad()
    def scale(self, factor: Tensor) -> None:
        """Multiply all by a scalar, which may be on another device."""
        for group in group_alike(map(local_part, self._present())):
            torch._foreach_mul_(group, factor.to(group[0].device))

    def clip(self, norm: GradientNorm) -> Tensor:
        """Scale all down to the norm's limit, with those of all its ranks; return their norm."""
        norm.start(self.counted())
        verdict = norm.verdict()
        if verdict.scale is not None:
            self.scale(verdict.scale)
        return verdict.norm

    def _present(self) -> list[Tensor]:
        return [p.grad for p in self._parameters if p.grad is not None]


def widen_gradients(modules: Iterable[nn.Module]) -> None:
    """Let the gradients of bfloat16 and float16 parameters accumulate in float32.

    Each micro-batch's gradient is still computed in the parameters' dtype, but their sum is not
    rounded to it (Megatron-LM's `main_grad`).

    Raises:
        SynthError: this version of torch does not support it.
    """
    for parameter in {p for module in modules for p in module.parameters() if p.requires_grad}:
        if parameter.dtype in _NARROW:
            if not hasattr(parameter, "grad_dtype"):
                raise SynthError(
                    f"torch {torch.__version__} has no Tensor.grad_dtype, by which gradients "
                    f"accumulate in float32; update torch, or leave out float32 gradients"
                )
            if parameter.grad is not None and parameter.grad.dtype != torch.float32:
                raise SynthError(
                    f"a parameter of {parameter.dtype} has a gradient of {parameter.grad.dtype} "
                    f"already; call widen_gradients before Pipeline and before the first backward"
                )
            parameter.grad_dtype = torch.float32


def zero_gradient(parameter: Tensor) -> Tensor:
    """A gradient of zeros, in the dtype that the parameter's gradient is to have."""
    return torch.zeros_like(parameter, dtype=gradient_dtype(parameter))
