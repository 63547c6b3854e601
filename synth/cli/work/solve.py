"""The work of `synth solve`."""

from synth.cli.answer.output import AnswerForm
from synth.cli.answer.preview import preview
from synth.cli.read.solve_request import SolveRequest
from synth.cli.searches.least_cap import solve_least
from synth.cli.searches.steady_cap import solve_steady
from synth.cli.searches.within_limits import solve_within_limits
from synth.options.solve_task import read_solve
from synth.options.values import STEADY


def work(request: SolveRequest) -> None:
    """Find the best pipeline schedule that fits in memory, with a proven bound."""
    asked = read_solve(request.arguments)
    form = AnswerForm(request.format, request.has_all_rows)
    if request.dry_run:
        preview(asked, request.format)
    elif asked.target is not None:
        solve_least(asked, form)
    elif request.arguments.target == STEADY:
        solve_steady(asked, form)
    else:
        solve_within_limits(asked, form)
