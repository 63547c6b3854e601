"""`synth frontier`: the Pareto front of time and memory limit, with lower bounds."""

from synth.cli.read.frontier_request import FrontierRequest


def command(request: FrontierRequest) -> None:
    """Trace the Pareto front of time and memory limit, from the smallest feasible limit on.

    Every point is a plan with a proven lower bound. Ctrl-C keeps the points found so far, and the
    same command continues from them. Only one process at a time may write a curve.
    """
    from synth.cli.work.frontier import work

    work(request)
