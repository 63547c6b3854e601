"""`synth estimate`: a profile computed from a model's config and a device's numbers."""

from synth.cli.read.estimate_request import EstimateRequest


def command(request: EstimateRequest) -> None:
    """Compute the profile of MODEL on a device that need not be there.

    Times and bytes come from tables of measured kernels and from formulas, and are marked as
    estimated wherever they are shown.
    """
    from synth.cli.work.estimate import work

    work(request)
