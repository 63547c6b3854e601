"""The loss scale of a step, by the scaler that the caller passes."""

from collections.abc import Callable

from torch import Tensor
from torch.amp import GradScaler

from synth.errors import SynthError

Scale = Callable[[Tensor], Tensor]


def scale_of(scaler: GradScaler | None, num_ranks: int, *, has_stepper: bool) -> Scale | None:
    """Return the function that scales the gradient with which a backward starts; None: no scaling.

    Args:
        scaler: None or disabled: no scaling.
        num_ranks: the number of ranks of the pipeline.
        has_stepper: True if the pipeline updates the parameters itself.

    Raises:
        SynthError: the pipeline would update with scaled gradients, or one rank would skip a step
            that the others carry out.
    """
    if scaler is None or not scaler.is_enabled():
        return None
    if has_stepper:
        raise SynthError(
            "the pipeline's stepper would update with scaled gradients: step without a scaler, "
            "or leave the stepper out and call scaler.step(optimizer)"
        )
    if num_ranks > 1 and type(scaler)._unscale_grads_ is GradScaler._unscale_grads_:
        raise SynthError(
            f"with a {type(scaler).__name__} only those ranks would skip a step on which a "
            f"gradient overflows: make a PipelineGradScaler (synth.runtime.grad_scaler)"
        )
    return scaler.scale
