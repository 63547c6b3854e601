"""Errors that are not bugs of this project, and the exit code of each."""

from enum import IntEnum

from synth.option_names import named, named_fields


class ExitCode(IntEnum):
    """The exit code of a command; scripts may rely on them."""

    OK = 0
    FAILURE = 1
    USAGE = 2
    INFEASIBLE = 3
    NOTHING_FOUND = 4
    MISMATCH = 5
    INTERRUPTED = 130
    TERMINATED = 143


class SynthError(Exception):
    """A user's mistake or a broken input: says what was given, what was needed, and the way out.

    Options are marked in the message, as `synth.option_names` says.

    Attributes:
        exit_code: of a command that it ends; by default that of its class.
        fields: the names of the options that it is about; empty: none.
    """

    exit_code = ExitCode.USAGE

    def __init__(self, message: str, exit_code: ExitCode | None = None) -> None:
        super().__init__(named(message))
        self.fields = named_fields(message)
        self.exit_code = self.exit_code if exit_code is None else exit_code


class RunFailure(SynthError):
    """A run that ended because a rank failed; names the rank and the op."""

    exit_code = ExitCode.FAILURE


class TrainingDiverged(RunFailure):
    """The loss or a parameter is NaN or Inf: a restart would end the same way."""


class Mismatch(SynthError):
    """Two things that should agree do not: a plan and its claim, a run, a checkpoint or a model."""

    exit_code = ExitCode.MISMATCH
