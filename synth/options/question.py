"""The question of a comparison: which schedules, on which costs, within which limits."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from synth.errors import SynthError
from synth.options.defaults import AUTO
from synth.options.keywords import word
from synth.options.memory_limit import MemoryLimit
from synth.options.objective import read_objective
from synth.options.partition import is_searched, read_sizes
from synth.options.recompute import read_recompute
from synth.options.versions import check_goes_with_version_rows
from synth.profile import Profile
from synth.units import shown

if TYPE_CHECKING:
    from synth.plan.comparison import Question, Search
    from synth.plan.planners.planned import Planner
    from synth.plan.recompute.choice import Choice


def read_question(
    profile: Profile,
    ranks: int,
    micro_batches: int,
    limit: MemoryLimit,
    objective: str,
    partition: str,
) -> "Question":
    """Return the question of a comparison, without a search.

    Raises:
        SynthError: an unknown objective, or a partition that is not understood.
    """
    from synth.plan.comparison import Question

    kind, sizes = read_objective(objective), read_sizes(partition)
    search_partitions = is_searched(partition)
    return Question(
        profile,
        ranks,
        num_micro_batches=micro_batches,
        caps_bytes=limit.caps_bytes,
        objective=kind,
        partition=sizes,
        partition_is_sought=search_partitions,
    )


def read_searches(
    names: Sequence[str],
    ranks: int,
    recompute: str | None,
    weights: Sequence[str] = (),
    versions: Sequence[str] = (),
) -> "list[Search]":
    """Return the searches: one per placement, and one more with recomputation if asked for.

    `auto` is one search, which also chooses recomputation. On named placements nothing recomputes
    by default. For each of `weights`, ring or gather, there is a search with weight passing,
    and for each of `versions` one without a flush.

    Raises:
        SynthError: an unknown placement, or a stage that does not exist on one of them; unknown
            movements or versions of weights, or options that do not go with versions.
    """
    from synth.plan.comparison import Search
    from synth.schedule.placements import placement as named_placement
    from synth.solver.flush_free.flush_free_problem import parse_consistency
    from synth.solver.weight_passing.problem import WeightMovement

    searches = []
    for name in names:
        if word(name) == AUTO:
            searches.append(Search(AUTO, None, _on_any(recompute or AUTO)))
            continue
        where = named_placement(name, ranks)
        choice = read_recompute(recompute or "none", where.num_stages)
        searches.append(Search(name, where))
        if choice != ():
            searches.append(Search(name, where, choice))
    for name in weights:
        if name not in [*map(str, WeightMovement)]:
            raise SynthError(f"--weights {shown(name)} is not understood; give ring or gather")
        searches.append(Search(name, None, movement=WeightMovement(name)))
    check_goes_with_version_rows(versions, names, recompute)
    for name in versions:
        parse_consistency(name)
        searches.append(Search(word(name), None, never_flushes=True))
    return searches


def read_planners(names: Sequence[str]) -> "list[Planner]":
    """Return published planners by name.

    Raises:
        SynthError: there is no such planner.
    """
    from synth.plan.planners.planned import Planner

    known = [str(planner) for planner in Planner]
    for name in names:
        if name not in known:
            raise SynthError(f"--planner {shown(name)} is unknown; give {' or '.join(known)}")
    return [Planner(name) for name in names]


def _on_any(recompute: str) -> "Choice":
    """Read --recompute for any placement.

    Raises:
        SynthError: stages by number, or all of them.
    """
    if word(recompute) not in (AUTO, "none"):
        raise SynthError(
            f"--recompute {shown(recompute)} is for one placement; with --placement {AUTO} give "
            f"{AUTO} or none"
        )
    return None if word(recompute) == AUTO else ()
