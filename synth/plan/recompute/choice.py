"""Choice of recomputation: nothing, some stages, or the best choice."""

from collections.abc import Collection
from dataclasses import replace

from synth.costs.merged_recomputation import merged
from synth.plan.recompute.attempts import ChoiceAttempts
from synth.plan.recompute.choice_search import solve_choosing
from synth.plan.recompute.given_stages import (
    least_needed_bytes,
    solve_recomputing,
    why_nothing_fits,
)
from synth.plan.recompute.layer_bounds import bounds_of_every_choice
from synth.plan.recompute.layer_choice import applies
from synth.plan.recompute.menu_search import layer_search
from synth.plan.recompute.stages import bounds
from synth.plan.recompute.trial_choices import counts_tried
from synth.solver.infeasibility import find_shortage, needed_bytes, smallest_limit_bytes
from synth.solver.options import SolveOptions
from synth.solver.problem import Problem
from synth.solver.result import Result
from synth.solver.watch import UNWATCHED, SolveWatch

# Stages that recompute; None: chosen by the search, also layers if the problem has its profile.
Choice = tuple[int, ...] | None


def words(choice: Choice) -> str:
    """Format a choice as `--recompute` takes it: `none`, `auto`, `0,1`."""
    return "auto" if choice is None else ",".join(map(str, choice)) or "none"


def of_words(text: str) -> Choice:
    """The reverse of `words`.

    Raises:
        ValueError: not such a text.
    """
    if text in ("auto", "none"):
        return None if text == "auto" else ()
    return tuple(map(int, text.split(",")))


def solve_with(
    problem: Problem,
    choice: Choice,
    options: SolveOptions | None = None,
    watch: SolveWatch = UNWATCHED,
    attempts: ChoiceAttempts | None = None,
) -> Result:
    """Solve with the given stages recomputing.

    Args:
        choice: the stages; None: search for the best choice of stages and layers.
        watch: told of schedules whose problems may have other layers recomputed than the one given.
        attempts: those of earlier searches for the best choice; new ones are added.
    """
    if choice is None:
        return solve_choosing(problem, options, watch, attempts)
    return solve_recomputing(problem, choice, options, watch)


def why_infeasible(problem: Problem, choice: Choice) -> str | None:
    """Say why no schedule keeps the caps, in closed form; None: one may."""
    if choice == ():
        shortage = find_shortage(problem)
        return None if shortage is None else str(shortage)
    return why_nothing_fits(problem, _stages(problem, choice))


def needs_bytes(problem: Problem, choice: Choice) -> tuple[int, ...]:
    """The least that each rank can hold, with one micro-batch alone."""
    if choice == ():
        return needed_bytes(problem)
    return least_needed_bytes(problem, _stages(problem, choice))


def limits_bytes(problem: Problem, choice: Choice) -> tuple[int, int]:
    """A cap for all ranks that every schedule exceeds below, and one that some schedule keeps."""
    never = max(needs_bytes(problem, choice))
    if choice == ():
        return never, smallest_limit_bytes(problem)
    counts = counts_tried(problem)
    tried = [problem.rebuildable(range(count)) for count in counts] if choice is None else [choice]
    seen = [replace(problem, costs=merged(problem.costs, stages)) for stages in tried]
    if choice is None and applies(problem):
        seen.append(layer_search(problem, 0).least())
    return never, max(never, min(map(smallest_limit_bytes, seen)))


def bound_us(problem: Problem, choice: Choice) -> int:
    """A lower bound, in closed form, of all schedules with these stages recomputing."""
    spans = bounds_of_every_choice(problem) if choice is None else bounds(problem, choice)
    return problem.objective.value_us(spans)


def quick_bound_us(problem: Problem, choice: Choice) -> int:
    """A lower bound as `bound_us`, without the caps if the stages are to be chosen."""
    if choice is None:
        problem = replace(problem, caps_bytes=None)
    return problem.objective.value_us(bounds(problem, choice or ()))


def _stages(problem: Problem, choice: tuple[int, ...] | None) -> Collection[int]:
    """Return the stages that may recompute."""
    if choice is not None:
        return choice
    return problem.rebuildable(range(problem.costs.num_stages))
