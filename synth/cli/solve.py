"""`synth solve`: the best schedule that fits in memory, with a proven lower bound."""

from synth.cli.read.solve_request import SolveRequest


def command(request: SolveRequest) -> None:
    """Find the best pipeline schedule that fits in memory, with a proven bound.

    Ctrl-C keeps the best schedule so far. Exit code 3: the memory limit is infeasible; 4: no
    schedule was found in time.
    """
    from synth.cli.work.solve import work

    work(request)
