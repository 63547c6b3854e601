"""`synth run`: train under a plan on real devices, and compare measurement and plan."""

from pathlib import Path
from typing import Annotated, ClassVar

from synth.cli.answer.output import Format, FormatOption
from synth.cli.read.options import ChartWidthOption, ForceOption, PictureOption
from synth.cli.read.own_model import TrustOption, file_of
from synth.cli.read.request import CommandRequest
from synth.errors import SynthError
from synth.records.command_option import After, CommandArgument, CommandOption
from synth.records.overwrite_guard import PAGE, RUN, TRACE
from synth.records.safe_write import check_folder
from synth.run_options.train_options import TrainOptions


class RunRequest(CommandRequest):
    """Train under PLAN: launch one process per rank, or run as a worker under torchrun."""

    launches_ranks: ClassVar[bool] = True
    plan: Annotated[Path, CommandArgument("Plan file of `synth solve`.", metavar="PLAN")]
    training: TrainOptions = TrainOptions()
    output: Annotated[
        Path | None,
        After("--inputs"),
        CommandOption("Write losses and times of the run here, as JSON.", names=("--output", "-o")),
        RUN,
    ] = None
    trust: Annotated[TrustOption, After("--model")] = False
    trace: Annotated[
        Path | None,
        After("--patience"),
        CommandOption("Write the times of all ops and transfers here, as JSON."),
        TRACE,
    ] = None
    html: Annotated[
        Path | None,
        CommandOption(
            "Write charts of the plan and of the median step here, as one page for a browser."
        ),
        PAGE,
    ] = None
    picture: PictureOption = None
    width: ChartWidthOption = None
    force: ForceOption = False
    format: FormatOption = Format.TEXT

    def check_files(self, *inputs: Path | str | None) -> None:
        """Refuse files that cannot be written, need an option, or do not go with one."""
        training = self.training
        named = map(file_of, (training.model, training.inputs))
        super().check_files(self.plan, training.data, *named, *inputs)
        refuse_charts(training.look_ahead, self.trace, self.html, *self.pictures)
        if self.trace is None and training.trace_every is not None:
            raise SynthError(
                f"--trace-every {training.trace_every} needs a trace; give --trace FILE, or leave "
                f"it out"
            )
        training.weights.check_folders()
        if training.checkpoint is not None:
            check_folder("--checkpoint", training.checkpoint.folder)


def refuse_charts(look_ahead: int, *files: Path | None) -> None:
    """Refuse files about the order of a run that need not keep its plan's order."""
    wanted = [str(path) for path in files if path is not None]
    if look_ahead and wanted:
        raise SynthError(
            f"{', '.join(wanted)} would compare the run with the order of its plan, op by op, and "
            f"--look-ahead {look_ahead} changes the order; leave one of the two out"
        )
