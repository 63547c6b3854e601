"""`synth compare`: the published schedules and the solver's on one profile."""

from synth.cli.read.compare_request import CompareRequest


def command(request: CompareRequest) -> None:
    """Compare the published schedules, each on its own placement, with those of the solver.

    Sorted by the objective. Schedules that do not apply are listed with the reason.
    """
    from synth.cli.work.compare import work

    work(request)
