"""The options of `synth run` that correct late gradients, for plans without a flush."""

from typing import Annotated

from pydantic import PositiveInt

from synth.records.command_option import CommandOption
from synth.records.record import Record


class DelayOptions(Record):
    """Corrections by the delay of each stage; by default there are none."""

    lr_rescheduling: Annotated[
        PositiveInt | None,
        CommandOption(
            "Learning-rate rescheduling by delay (PipeMare): a stage's rate is divided by its "
            "delay at first, and undivided after this many updates.",
            metavar="UPDATES",
        ),
    ] = None
    async_nesterov: Annotated[
        bool,
        CommandOption(
            "Nesterov momentum for asynchronous pipelines: gradients are weighted by 1 − "
            "momentum, and the weights are look-ahead points. With sgd:MOMENTUM."
        ),
    ] = False
    weight_prediction: Annotated[
        bool,
        CommandOption(
            "Weight prediction (SpecTrain, PipeOptim): a forward reads the weights as the "
            "optimizer's last update predicts them for when its gradient is used."
        ),
    ] = False

    def __str__(self) -> str:
        """The options as they are given; empty: none is."""
        given = {
            f"--lr-rescheduling {self.lr_rescheduling}": self.lr_rescheduling is not None,
            "--async-nesterov": self.async_nesterov,
            "--weight-prediction": self.weight_prediction,
        }
        return ", ".join(text for text, is_given in given.items() if is_given)
