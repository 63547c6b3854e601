"""The question of a comparison: which schedules, on which costs, within which limits."""

from collections.abc import Sequence
from typing import NamedTuple

from synth.errors import SynthError
from synth.op_kinds import OpKind
from synth.options.arguments.compare import CompareArguments
from synth.options.conflicts import (
    check_rows_of_runtime,
    check_rows_of_unequal_ranks,
    check_rows_without_flush,
)
from synth.options.defaults import has_time_for_layers
from synth.options.memory_limit import MemoryLimit
from synth.options.recompute import read_recompute
from synth.options.values import AUTO, word
from synth.plan.comparison import Question, SearchRequest
from synth.plan.planners.planned import Planner
from synth.plan.recompute.choice import Choice
from synth.profile import Profile
from synth.schedule.placements import placement as named_placement
from synth.solver.flush_free.flush_free_problem import parse_consistency
from synth.solver.options import SolveOptions
from synth.solver.weight_passing.problem import WeightMovement
from synth.units import shown


class ComparisonTask(NamedTuple):
    """A question, its memory limit in words, and the searches and planners that answer it.

    `options` are those of each search.
    """

    question: Question
    limit: MemoryLimit
    searches: list[SearchRequest]
    planners: list[Planner]
    options: SolveOptions


def read_comparison(given: CompareArguments) -> ComparisonTask:
    """Read and check all options.

    Raises:
        SynthError: an option is wrong, or options do not go together.
    """
    profile = given.hardware.of_ranks(given.pipeline.profile, given.pipeline.ranks)
    limit = given.memory.limits(given.pipeline.ranks, profile)
    question = _question(given, profile, limit)
    check_rows_of_runtime(given)
    if profile.rank_speeds is not None:
        check_rows_of_unequal_ranks(given)
    if given.no_solve:
        _refuse_options_of_the_solver(given)
    searches = _searches(given)
    options = SolveOptions(
        time_limit_s=given.time_limit, gap=given.search.gap, seed=given.search.seed
    )
    planners = _planners(given.planner or ())
    return ComparisonTask(question, limit, [] if given.no_solve else searches, planners, options)


def _question(given: CompareArguments, profile: Profile, limit: MemoryLimit) -> Question:
    """Return the question, without a search."""
    allowed, num_layers = given.freedom.allowed, len(profile.layers)
    return Question(
        profile,
        given.pipeline.ranks,
        num_micro_batches=given.pipeline.micro_batches,
        caps_bytes=limit.caps_bytes,
        objective=given.objective,
        partition=None if isinstance(given.partition, str) else given.partition,
        partition_is_sought=given.partition == AUTO,
        allowed=allowed,
        published_recompute=word(given.recompute or AUTO) != "none",
        # Where stages can recompute, rows choose among these.
        chooses_layers=OpKind.R not in allowed.further_ops
        and profile.rank_speeds is None
        and has_time_for_layers(given.placement or [AUTO], allowed, num_layers, given.time_limit),
        orders_ranks=given.hardware.rank_order == AUTO,
    )


def _refuse_options_of_the_solver(given: CompareArguments) -> None:
    """Refuse options that say what the solver searches."""
    refused = [f"§weights {name}" for name in given.weights or ()]
    refused += [f"§versions {name}" for name in given.versions or ()]
    if word(given.recompute or "none") != "none":
        refused.append(f"§recompute {given.recompute}")
    if refused:
        raise SynthError(
            f"{refused[0]} is for the solver, and §no_solve leaves the solver out; give one of them"
        )


def _searches(given: CompareArguments) -> list[SearchRequest]:
    """Return the searches: one per placement, and one more with recomputation if asked for.

    `auto` is one search, which also chooses recomputation. On named placements nothing recomputes
    by default. For each of `--weights`, ring or gather, there is a search with weight passing,
    and for each of `--versions` one without a flush.

    Raises:
        SynthError: an unknown placement, or a stage that does not exist on one of them; unknown
            movements or versions of weights, or options that do not go with versions.
    """
    searches = []
    names = given.placement or [AUTO]
    for name in names:
        if word(name) == AUTO:
            searches.append(SearchRequest(AUTO, None, _on_any(given.recompute or AUTO)))
            continue
        where = named_placement(name, given.pipeline.ranks)
        choice = read_recompute(given.recompute or "none", where.num_stages)
        searches.append(SearchRequest(name, where))
        if choice != ():
            searches.append(SearchRequest(name, where, choice))
    for name in given.weights or ():
        if name not in [*map(str, WeightMovement)]:
            raise SynthError(f"§weights {shown(name)} is not understood; give ring or gather")
        searches.append(SearchRequest(name, None, movement=WeightMovement(name)))
    check_rows_without_flush(given)
    for name in given.versions or ():
        parse_consistency(name)
        searches.append(SearchRequest(word(name), None, never_flushes=True))
    return searches


def _planners(names: Sequence[str]) -> list[Planner]:
    """Return published planners by name.

    Raises:
        SynthError: there is no such planner.
    """
    known = [str(planner) for planner in Planner]
    for name in names:
        if name not in known:
            raise SynthError(f"§planner {shown(name)} is unknown; give {' or '.join(known)}")
    return [Planner(name) for name in names]


def _on_any(recompute: str) -> Choice:
    """Read --recompute for any placement.

    Raises:
        SynthError: stages by number, or all of them.
    """
    if word(recompute) not in (AUTO, "none"):
        raise SynthError(
            f"§recompute {shown(recompute)} is for one placement; with §placement {AUTO} give "
            f"{AUTO} or none"
        )
    return None if word(recompute) == AUTO else ()
