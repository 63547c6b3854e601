"""`synth run`: train under a plan on real devices, and compare measurement and plan."""

from pathlib import Path
from typing import Annotated

import typer

from synth.cli.answer.output import Format, FormatOption
from synth.cli.read.options import ChartWidthOption, ForceOption
from synth.cli.read.own_model import TrustOption, file_of
from synth.cli.read.pictures import PictureOption, check_pictures
from synth.errors import SynthError
from synth.records.command_option import After, CommandOption
from synth.records.overwrite_guard import PAGE, RUN, TRACE, check_replaceable
from synth.records.record import Record
from synth.records.safe_write import check_folder, check_outputs
from synth.run_options.train_options import TrainOptions
from synth.system.processors import limit_ranks


class RunRequest(Record):
    """The options of `synth run`."""

    training: TrainOptions = TrainOptions()
    output: Annotated[
        Path | None,
        After("--inputs"),
        CommandOption("Write losses and times of the run here, as JSON.", names=("--output", "-o")),
    ] = None
    trust: Annotated[TrustOption, After("--model")] = False
    trace: Annotated[
        Path | None,
        After("--patience"),
        CommandOption("Write the times of all ops and transfers here, as JSON."),
    ] = None
    html: Annotated[
        Path | None,
        CommandOption(
            "Write charts of the plan and of the median step here, as one page for a browser."
        ),
    ] = None
    picture: PictureOption = None
    width: ChartWidthOption = None
    force: ForceOption = False
    format: FormatOption = Format.TEXT

    @property
    def pictures(self) -> list[Path]:
        """The pictures to write."""
        return self.picture or []

    def check_files(self, plan: Path) -> None:
        """Refuse files that cannot be written, before work is spent on their contents.

        Args:
            plan: the file of the plan, which must not be lost.

        Raises:
            SynthError: there is one; or a file needs an option, or does not go with one.
        """
        training = self.training
        named = map(file_of, (training.model, training.inputs))
        check_outputs(
            self.output, self.trace, self.html, *self.pictures, inputs=[plan, training.data, *named]
        )
        check_replaceable(self.output, RUN, "-o", self.force)
        check_replaceable(self.trace, TRACE, "--trace", self.force)
        check_replaceable(self.html, PAGE, "--html", self.force)
        check_pictures(self.pictures, self.force)
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


def command(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="Plan file of `synth solve`.")],
    request: RunRequest,
) -> None:
    """Train under PLAN: launch one process per rank, or run as a worker under torchrun."""
    limit_ranks()
    from synth.cli.work.run import work

    work(plan, request)
