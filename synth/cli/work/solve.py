"""The work of `synth solve`."""

from synth.cli.answer.output import AnswerForm
from synth.cli.answer.preview import preview
from synth.cli.read.solve_request import SolveRequest
from synth.cli.searches.least_cap import solve_least
from synth.cli.searches.steady_cap import solve_steady
from synth.cli.searches.trials import preview_candidates, solve_candidates
from synth.cli.searches.versions import solve_versions
from synth.cli.searches.weights import solve_weights
from synth.cli.searches.within_limits import solve_within_limits
from synth.options.asked_solve import read_solve
from synth.options.target import is_steady


def work(request: SolveRequest) -> None:
    """Find the best pipeline schedule that fits in memory, with a proven bound."""
    asked, dry_run, format = read_solve(request.arguments), request.dry_run, request.format
    form = AnswerForm(format, request.has_all_rows)
    if asked.weight_choices and (asked.target is None or dry_run):
        solve_weights(asked, form, is_dry=dry_run)
    elif asked.candidates is not None and asked.target is None and not dry_run:
        solve_candidates(asked.request, asked.candidates, form)
    elif asked.candidates is not None and asked.candidates.are_several:
        preview_candidates(asked.request, asked.candidates, format)
    elif dry_run:
        preview(asked.request, format, asked.flush_free)
    elif asked.flush_free is not None:
        solve_versions(asked, form)
    elif is_steady(request.arguments.target):
        solve_steady(asked.request, form)
    elif asked.target is not None:
        solve_least(asked.request, asked.target, form, asked.weight_candidates)
    else:
        solve_within_limits(asked.request, form)
