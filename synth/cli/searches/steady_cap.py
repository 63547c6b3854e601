"""`synth solve --mem-limit min --target steady`: minimize memory without a steady-state bubble."""

from synth.cli.answer.output import AnswerForm, talk
from synth.cli.progress.interrupt import run_interruptibly
from synth.cli.searches.within_limits import finish, reporting
from synth.options.best_so_far import BestSoFar
from synth.options.least_memory import search_steady
from synth.options.request import announce
from synth.options.solve_task import SolveTask
from synth.plan.recompute.choice_search import Listeners


def solve_steady(asked: SolveTask, form: AnswerForm) -> None:
    """Find the least limit, search under it in the remaining time, and answer.

    Raises:
        NoSchedule: no schedule that repeats without bubble was found.
    """
    announce(asked.request)

    def listeners(limited: SolveTask) -> Listeners:
        talk(limited.request.limit.explanation)
        return reporting(limited, BestSoFar())

    request, result = run_interruptibly(lambda stop: search_steady(asked, listeners, stop))
    finish(request, result, form)
