"""The optimizer's options, as `synth profile` and `synth run` take them."""

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from synth.optimizer import OptimizerSpec

OptimizerOption = Annotated[str, typer.Option(help="adamw, sgd, or sgd:MOMENTUM.")]
MasterWeightsOption = Annotated[
    bool,
    typer.Option("--master-weights", help="Keep float32 master weights of bfloat16 parameters."),
]
Float32GradientsOption = Annotated[
    bool,
    typer.Option(
        "--float32-gradients",
        help="Accumulate gradients in float32; needs --master-weights.",
    ),
]
PostValidationOption = Annotated[
    bool,
    typer.Option(
        "--post-validation",
        help="Post-validation: step without waiting for the global gradient norm, and undo the "
        "step if it had to be clipped or skipped. Keeps a copy of the parameters.",
    ),
]


def read_optimizer(
    written: str, *, master_weights: bool, float32_gradients: bool, post_validation: bool
) -> "OptimizerSpec":
    """Read the optimizer; the switches may also be part of what is written.

    Raises:
        SynthError: there is no such optimizer.
    """
    from synth.optimizer import OptimizerSpec

    spec = OptimizerSpec.parse(written)
    return spec.replace(
        master_weights=spec.master_weights or master_weights,
        float32_gradients=spec.float32_gradients or float32_gradients,
        post_validation=spec.post_validation or post_validation,
    )
