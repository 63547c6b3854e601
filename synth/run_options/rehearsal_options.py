"""The options of a rehearsal; everything else is in the plan."""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from synth.errors import SynthError
from synth.records.command_option import CommandOption, Read
from synth.records.record import Record
from synth.run_options.train_options import TrainOptions
from synth.units import shown


def _read_ranks(given: object) -> object:
    """Read numbers and commas between them."""
    if not isinstance(given, str):
        return given
    try:
        return tuple(dict.fromkeys(int(part) for part in given.split(",")))
    except ValueError:
        raise SynthError(
            f"§ranks {shown(given)} is not understood; write numbers of ranks, such as 0,7"
        ) from None


class RehearsalOptions(Record):
    """The options of a rehearsal; those that training has too have its names."""

    ranks: Annotated[
        tuple[int, ...] | None,
        Read(_read_ranks, "numbers of ranks"),
        CommandOption("Ranks to rehearse, such as 0,7.", default="all"),
    ] = None
    data: Annotated[
        Path | None,
        CommandOption(
            "Training data as for `synth run`; without data or inputs a built-in model gets "
            "random token ids."
        ),
    ] = None
    inputs: Annotated[
        str | None,
        CommandOption(
            "Function that makes the micro-batches instead of --data.", metavar="FILE.py:FUNCTION"
        ),
    ] = None
    model: Annotated[
        str | None,
        CommandOption(
            "Model, also as package.module:function, instead of the one that PLAN names.",
            metavar="FILE.py:FUNCTION",
        ),
    ] = None
    steps: Annotated[
        int,
        Field(ge=3),
        CommandOption("Steps of each rank; the first warms up, the second measures memory."),
    ] = 6
    planned_arrivals: Annotated[
        bool,
        CommandOption(
            "What other ranks would send arrives when the plan says (emulated), so that a rank has "
            "its waits; without this it is there at once."
        ),
    ] = False
    seed: Annotated[
        int, Field(ge=0, le=2**31 - 1), CommandOption("Random seed of weights and inputs.")
    ] = 0
    device: Annotated[str, CommandOption("auto, cpu or cuda.")] = "auto"

    def of_training(self) -> TrainOptions:
        """The same as options of a run."""
        return TrainOptions(
            data=self.data,
            inputs=self.inputs,
            model=self.model,
            steps=self.steps,
            seed=self.seed,
            device=self.device,
        )
