"""Candidates of `synth solve`: the placements to choose from, each with its problem."""

from contextlib import suppress
from dataclasses import dataclass, replace

from synth.errors import SynthError
from synth.options.deadline import Deadline
from synth.options.defaults import FOR_ALL, SolveChoices
from synth.options.recompute import read_recompute
from synth.options.values import AUTO, EVEN, STEADY, Hint, Partition, Target, word
from synth.plan.choose.candidates import Candidate, placements_to_try
from synth.plan.offload.offload_space import finer_placements, may_offload
from synth.plan.partition.unequal_ranks import name_in_order
from synth.plan.problem_arguments import ProblemArguments
from synth.plan.recompute.choice import why_infeasible
from synth.plan.recompute.layers_in_place import check_stages
from synth.plan.runtimes import Allowed
from synth.schedule.model import Placement
from synth.schedule.placements import placement
from synth.system.messages import talk
from synth.units import shown


@dataclass(frozen=True)
class Candidates:
    """Candidates to choose from; none: there is no choice.

    Attributes:
        refusals: by placement, why others are impossible.
        unsearched: those on placements that are not searched unless they are asked for.
        finer: those on placements that are searched for schedules with offloads alone.
    """

    searched: tuple[Candidate, ...]
    refusals: dict[str, str]
    unsearched: tuple[Candidate, ...] = ()
    finer: tuple[Candidate, ...] = ()


NO_CHOICE = Candidates((), {})


def is_choice(chosen: SolveChoices, *, is_for_one: bool) -> bool:
    """Return True if placement, partition or recomputation is left to the search.

    Args:
        is_for_one: a hint or a target is given; then `search` chooses the stages that recompute.
    """
    chooses_stages = _is_auto(chosen.recompute) and not is_for_one
    return chooses_stages or _is_auto(chosen.placement) or chosen.partition == AUTO


def _is_auto(text: str) -> bool:
    return word(text) == AUTO


def read_candidates(
    asked: ProblemArguments, chosen: SolveChoices, num_ranks: int, deadline: Deadline
) -> Candidates:
    """Read the placement given, or all usual ones, each with its problem.

    A given partition leaves the placements of as many stages. A search for partitions begins with
    a balanced one.

    Raises:
        SynthError: no placement is possible, or the stages named do not exist on all.
    """
    placements, unsearched = _placements(chosen.placement, num_ranks, asked)
    _check_stages(chosen)
    found: list[Candidate] = []
    refusals: dict[str, str] = {}
    is_late = deadline.for_partitions()
    for place, (name, where) in enumerate(placements.items()):
        if not chosen.placement_is_given and is_late() and _may_fit(found):
            # With large problems, placements that were not named are left out.
            talk(f"not tried, for lack of time: {', '.join([*placements][place:])}")
            break
        try:
            _check_sizes(asked.partition, where)
            until = deadline.for_partitions(place + 1, len(placements))
            problems = asked.each_on(where, until)
            order = asked.allowed.order_on(where, asked.num_micro_batches)
        except SynthError as error:
            refusals[name] = str(error)
            continue
        choice = read_recompute(chosen.recompute, where.num_stages)
        for problem in problems:
            check_stages(problem, choice, asked.profile)
            ordered = name_in_order(name, where, problem.placement)
            found.append(Candidate(ordered, problem, choice, order))
    if not found:
        raise SynthError(_why_none(chosen, refusals))
    # Refusals of placements that were not named are not reported.
    told = refusals if chosen.placement_is_given else {}
    is_of_all = _is_auto(chosen.placement) and may_offload(found[0].problem, asked.allowed)
    finer = _finer(asked, num_ranks, deadline) if is_of_all else ()
    return Candidates(tuple(found), told, _unsearched(asked, unsearched), finer)


def _finer(asked: ProblemArguments, num_ranks: int, deadline: Deadline) -> tuple[Candidate, ...]:
    """Return candidates on finer placements, while there is time."""
    is_late, found = deadline.for_partitions(), []
    for name, where in finer_placements(num_ranks, len(asked.profile.layers)).items():
        if is_late():
            break
        with suppress(SynthError):
            _check_sizes(asked.partition, where)
            found.append(Candidate(name, asked.on(where, is_late)))
    return tuple(found)


def _unsearched(asked: ProblemArguments, placements: dict[str, Placement]) -> tuple[Candidate, ...]:
    """Return candidates on placements that are not searched, for comparison."""
    free, found = replace(asked, allowed=Allowed(offloads=True)), []
    for name, where in placements.items():
        with suppress(SynthError):
            _check_sizes(asked.partition, where)
            found.append(Candidate(name, free.on(where, lambda: True)))
    return tuple(found)


def _check_stages(chosen: SolveChoices) -> None:
    if _is_auto(chosen.placement) and word(chosen.recompute) not in FOR_ALL:
        raise SynthError(
            f"§recompute {shown(chosen.recompute)} names stages of one placement; with "
            f"§placement {AUTO} give {', '.join(FOR_ALL)}"
        )


def _check_sizes(sizes: Partition, where: Placement) -> None:
    """Raise SynthError if the partition has another number of stages than the placement."""
    if not isinstance(sizes, str) and len(sizes) != where.num_stages:
        raise SynthError(
            f"the placement has {where.num_stages} stages, and §partition has the layers of "
            f"{len(sizes)}; give one number for each stage"
        )


def _may_fit(found: list[Candidate]) -> bool:
    """Return True if closed forms do not exclude all candidates."""
    return any(why_infeasible(one.problem, one.choice) is None for one in found)


def _why_none(chosen: SolveChoices, refusals: dict[str, str]) -> str:
    name, why = next(iter(refusals.items()))
    if _is_auto(chosen.placement) and chosen.placement_is_given:
        return f"§placement {AUTO}: no placement is possible; {name}: {why}"
    return why


def _placements(
    name: str, num_ranks: int, asked: ProblemArguments
) -> tuple[dict[str, Placement], dict[str, Placement]]:
    """Return the placements to search by name, and those with orders that are left out."""
    if _is_auto(name):
        every = placements_to_try(num_ranks, len(asked.profile.layers))
        searched = {n: where for n, where in every.items() if asked.allowed.is_default_on(where)}
        if not asked.allowed.orders_freely:
            return searched, every
        return searched, {n: where for n, where in every.items() if n not in searched}
    where = {name: placement(name, num_ranks)}
    return where, {} if asked.allowed.orders_freely else where


def check_goes_with_choice(chosen: SolveChoices, target: Target | None, hint: Hint | None) -> None:
    """Refuse options that are for one placement, or for one partition of it.

    Raises:
        SynthError: a hint; or a target with several placements, or a target that is no time.
    """
    left, way_out = f"§partition {AUTO}", f"give layers per stage or {EVEN}"
    is_placed = not _is_auto(chosen.placement)
    if not is_placed:
        left, way_out = f"§placement {AUTO}", "name the placement (linear, looped:2, v, …)"
    elif chosen.partition != AUTO:
        return
    is_for_one = target is not None and (not is_placed or target == STEADY)
    given = "§hint" if hint is not None else "§target" if is_for_one else None
    if given is not None:
        raise SynthError(
            f"{given} and {left} do not go together, as it is for one placement in one partition; "
            f"{way_out}, or leave {given} out"
        )
