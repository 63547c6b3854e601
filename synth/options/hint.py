"""Reading `--hint`: a schedule file, or the name of a published schedule."""

from pathlib import Path
from shlex import quote
from typing import NamedTuple

from synth.costs.costs import Costs
from synth.costs.recomputation import Recomputation
from synth.errors import SynthError
from synth.families import current_name, families, family_placement, generate, generate_for
from synth.options.values import Hint
from synth.plan.choose.published_pairs import HintedPairs
from synth.profile import Profile
from synth.schedule.files.plan_file import Plan
from synth.schedule.model import Placement, Schedule
from synth.schedule.recomputed_stages import recomputed, without_recompute
from synth.solver.problem import Problem
from synth.system.messages import talk
from synth.units import counted


class ReadHint(NamedTuple):
    """A hint: the order to start from, and what is tried as it is.

    Attributes:
        order: of F, B and W, one after the other.
        pairs: the schedule with its F and BW at once; None: it has none, or they are not run.
    """

    order: Schedule | None = None
    pairs: HintedPairs | None = None


def read_hint(
    given: Hint | None, problem: Problem, profile: Profile, *, runs_pairs: bool = False
) -> ReadHint:
    """Return the schedule to start from; a file takes precedence over a published schedule.

    Args:
        problem: the sizes and the placement that it must have.
        profile: of the costs.
        runs_pairs: F and BW at once have a time and can be run.

    Raises:
        SynthError: neither, or one for other sizes or on another placement.
    """
    if given is None:
        return ReadHint()
    plan = given if isinstance(given, Plan) else None
    text = given.name if isinstance(given, Plan) else str(given)
    path = Path(text)
    if plan is None and (path.exists() or path.suffix or len(path.parts) > 1):
        plan = Plan.load(path)
    found = _made(text, problem) if plan is None else _of_plan(plan, text, problem, profile)
    order, pairs = _as_ordered(text, found, problem), None
    if found.overlapped:
        is_tried = runs_pairs and not recomputed(found)
        if is_tried:
            pairs = HintedPairs(text, found, None if plan is None else plan.partition)
        how = "its order is taken, and they run one after the other"
        if is_tried:
            how = "it is tried as it is, and the search begins with its order without these pairs"
        talk(f"note: §hint {text} runs F and BW at once, which no search does; {how}")
    return ReadHint(order, pairs)


def _as_ordered(text: str, given: Schedule, problem: Problem) -> Schedule:
    """Return the part of a schedule that the search can start from: its order of F, B and W.

    Raises:
        SynthError: it offloads activations, moves weights, updates them between its ops, or
            divides the vocabulary.
    """
    if given.versions is not None:
        raise SynthError(
            f"§hint {text} updates weights between its ops, and the search orders those of one "
            f"update; {_those_that_can_be(problem)}"
        )
    if given.vocabulary:
        raise SynthError(
            f"§hint {text} divides the vocabulary over all ranks, and the search orders whole "
            f"layers; {_those_that_can_be(problem)}"
        )
    ordered = without_recompute(given).one_after_the_other
    if not ordered.keeps_saved:
        moved = "what forwards save to the host or another rank"
        if ordered.weights is not None:
            moved = "weights from rank to rank"
        raise SynthError(
            f"§hint {text} moves {moved}, and the search orders F, B and W alone; "
            f"{_those_that_can_be(problem)}"
        )
    if recomputed(given):
        talk(
            f"note: of §hint {text} the order of F, B and W is taken; which stages recompute is "
            f"for §recompute to say"
        )
    return ordered


def _made(name: str, problem: Problem) -> Schedule:
    """Return the published schedule of a name, on the problem's placement."""
    if current_name(name).partition(":")[0] not in families():
        raise SynthError(
            f"§hint {name} is neither a schedule file nor a published schedule; "
            f"{_those_that_can_be(problem)}"
        )
    try:
        made = generate(
            name,
            problem.num_ranks,
            problem.num_micro_batches,
            costs=_costs_for(name, problem),
            caps_bytes=problem.caps_bytes,
            objective=problem.objective,
        )
    except SynthError as error:
        raise SynthError(f"§hint {name}: {error}; {_those_that_can_be(problem)}") from None
    if made.placement != problem.placement:
        raise SynthError(
            f"§hint {name} places its stages on ranks {_placed(made.placement)}, asked for is "
            f"{_placed(problem.placement)}; give another §placement; {_those_that_can_be(problem)}"
        )
    return made


def _costs_for(name: str, problem: Problem) -> Costs | None:
    """Return the problem's costs if the family has as many stages; else None."""
    where = family_placement(name, problem.num_ranks)
    return problem.costs if where.num_stages == problem.costs.num_stages else None


def _those_that_can_be(problem: Problem) -> str:
    """List the published schedules on the problem's placement from which a search can start."""
    names = sorted(
        name
        for name, made in generate_for(
            problem.placement, problem.num_micro_batches, problem.costs, problem.caps_bytes
        )
        if without_recompute(made).keeps_saved
    )
    return f"with these numbers there are on this placement: {', '.join(names)}"


def _of_plan(plan: Plan, name: str, problem: Problem, profile: Profile) -> Schedule:
    plan.check()
    schedule = plan.schedule()
    sizes = (plan.num_ranks, plan.num_micro_batches)
    if sizes != (problem.num_ranks, problem.num_micro_batches):
        raise SynthError(
            f"§hint {name} is for {counted(plan.num_ranks, 'rank')} and "
            f"{counted(plan.num_micro_batches, 'micro-batch')}, asked for are "
            f"{counted(problem.num_ranks, 'rank')} and "
            f"{counted(problem.num_micro_batches, 'micro-batch')}; give a plan for the same sizes, "
            f"or none"
        )
    if schedule.placement != problem.placement:
        raise SynthError(
            f"§hint {name} places its stages on ranks {_placed(schedule.placement)}, asked for is "
            f"{_placed(problem.placement)}; give a plan with the same §placement, or none"
        )
    if plan.profile_fingerprint != profile.fingerprint():
        talk(
            f"note: §hint {name} was made from another profile, or for other links "
            f"({plan.profile_name}, not this {profile.name}); its order is taken, its times are not"
        )
    _tell_of_layers(name, plan.recomputation, problem.recomputed_layers)
    return schedule


def _tell_of_layers(name: str, recomputed: Recomputation, asked: Recomputation) -> None:
    """Say that a hint's recomputed layers are ignored, if others or none were asked for."""
    if recomputed and recomputed != asked:
        talk(
            f"note: the layers that §hint {name} recomputes are not taken, and its order may not "
            f"fit without; §recompute {quote(recomputed.written)} recomputes them"
        )


def _placed(where: Placement) -> str:
    """`0,1,1,0`, one replica after another."""
    return " and ".join(",".join(map(str, ranks)) for ranks in where.ranks)
