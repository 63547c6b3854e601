"""The commands: each module of this folder with a function `command` is one.

`main` imports them after it has taken charge of Ctrl-C, so little is imported here.
"""

import errno
import io
import os
import signal
import sys
import time
from types import FrameType
from typing import NoReturn

from synth.cli.read.arguments import refuse_empty
from synth.errors import ExitCode, SynthError
from synth.options.deadline import BEGAN
from synth.system.terminal_text import as_message

__all__ = ["app", "main", "run_command_line"]


def app(prog_name: str) -> None:
    """Run the command that the arguments name."""
    from synth.cli.commands import app as commands  # with typer, once Ctrl-C is taken charge of

    commands(prog_name=prog_name)


def main() -> None:
    """Run the program: `run_command_line`, and at any moment Ctrl-C ends it without a traceback."""
    signal.signal(signal.SIGINT, give_up)
    _open_closed_streams()
    try:
        run_command_line()
    finally:
        # The answer is written and the exit code stands. Python ends by giving SIGINT its default
        # action, which would let a late Ctrl-C end the process with another code.
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _open_closed_streams() -> None:
    """Open the null device for standard streams that were closed, as by `>&-`.

    Python has None in their place, and the next files and pipes would get their descriptors.
    """
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(descriptor, True)  # ranks have them, too
            opened = os.fdopen(descriptor, "r" if name == "stdin" else "w")
            setattr(sys, name, opened)
            setattr(sys, f"__{name}__", opened)


def run_command_line() -> None:
    """Run the command of `sys.argv`: a user's mistake is one message on stderr, a bug a traceback.

    Raises:
        SystemExit: always, with the exit code.
    """
    token = BEGAN.set(time.monotonic())
    try:
        _run()
    except SystemExit as ending:
        _leave_alone(ending.code)
        raise
    finally:
        BEGAN.reset(token)


def _leave_alone(code: object) -> None:
    """End the process at once if abandoned work still runs: its threads cannot be ended.

    So does a rank that torchrun made of this process: C++ teardown at interpreter exit now and then
    aborts in torch's own threads, which would fail a good run.
    """
    interrupt = sys.modules.get("synth.cli.progress.interrupt")
    is_left_alone = interrupt is not None and interrupt.is_work_left_alone()
    if is_left_alone or ("torch" in sys.modules and "TORCHELASTIC_RUN_ID" in os.environ):
        sys.stdout.flush()
        sys.stderr.flush()
        if not isinstance(code, int):
            code = ExitCode.OK if code is None else ExitCode.FAILURE
        os._exit(code)


def give_up(signum: int, frame: FrameType | None) -> None:
    """End the process at once on Ctrl-C, while there is nothing to keep.

    An exception would become a traceback in other packages' code, above all in imports.
    """
    os.write(2, b"interrupted\n")
    os._exit(ExitCode.INTERRUPTED)


def _run() -> None:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # an ASCII terminal gets ? for µ, not a traceback
    try:
        refuse_empty(sys.argv)
        app(prog_name="synth")
    except SynthError as error:
        _end(str(error), error.exit_code)
    except OSError as error:
        if error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
            _end(f"{error.filename}: {error.strerror}; give another path", ExitCode.USAGE)
        if error.errno not in (errno.ENOSPC, errno.EPIPE, errno.EIO):
            raise
        _end(f"cannot write the answer: {error.strerror or error}", ExitCode.FAILURE)


def _end(message: str, exit_code: ExitCode) -> NoReturn:
    """Print the error, whatever characters its message quotes, and exit."""
    print(f"error: {as_message(message)}", file=sys.stderr)
    sys.exit(exit_code)
