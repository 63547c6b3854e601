"""The error of a schedule that must not run."""

from synth.errors import ExitCode, SynthError


class ScheduleError(SynthError):
    """The schedule must not run; the message names the first op that is wrong."""

    exit_code = ExitCode.MISMATCH
