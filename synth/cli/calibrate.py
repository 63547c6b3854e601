"""`synth calibrate`: the factors of a device and a training program, from measured rows."""

from synth.cli.read.calibrate_request import CalibrateRequest


def command(request: CalibrateRequest) -> None:
    """Fit the three factors of `synth estimate` to RUNS: matrices, memory, communication.

    Prints what each run leaves unexplained. Without runs that show a part, its factor stays near 1,
    and its uncertainty large.
    """
    from synth.cli.work.calibrate import work

    work(request)
