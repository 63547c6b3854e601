"""`synth solve --versions`: the search without a flush, and the answer."""

from collections.abc import Callable

from synth.cli.answer.output import AnswerForm, talk
from synth.cli.progress.interrupt import run_interruptibly
from synth.cli.searches.within_limits import finish
from synth.options.asked_solve import AskedSolve
from synth.options.best_so_far import BestSoFar
from synth.options.request import announce
from synth.solver.problem import Problem
from synth.solver.result import Incumbent


def solve_versions(asked: AskedSolve, form: AnswerForm) -> None:
    """Search, save every improvement, and answer.

    Raises:
        NoSchedule: nothing was found.
    """
    request, so_far = asked.request, BestSoFar()
    announce(request)

    def listener(problem: Problem) -> Callable[[Incumbent], None]:
        def tell(found: Incumbent) -> None:
            request.save_so_far(found)
            if found.steady is not None:
                talk(f"{found.steady.us / 1000:,.3f} ms of a micro-batch ({found.found_by})")

        return so_far.listening(problem, tell)

    result = run_interruptibly(
        lambda stop: asked.solve_flush_free(listener, stop),
        request.deadline.until(),
        lambda: so_far.result(request.deadline.elapsed_s),
    )
    finish(request, result, form)
