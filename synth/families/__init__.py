"""The published schedules of `docs/families.md` as generators: one file each, found by its folder.

A family's module defines `FAMILY`; nothing else needs to know of it. A family is defined on one
kind of placement; `generate` asks for it by name, `generate_for` for all that a placement admits.
A function that takes a name raises a SynthError if the family or one of its options is unknown.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from numbers import Integral

from synth.costs.costs import Costs
from synth.errors import SynthError
from synth.families._lib import names
from synth.families._lib.family import Family, Setting
from synth.families._lib.options import PAIRS, ROUNDS, Options, parse, spelled, variants
from synth.objective import Objective
from synth.schedule.model import Placement, Schedule
from synth.schedule.placements import is_all_stages
from synth.suggestions import did_you_mean
from synth.system.discovery import discover

__all__ = [
    "Family",
    "Setting",
    "current_name",
    "families",
    "family_layout",
    "family_of",
    "family_placement",
    "generate",
    "generate_for",
    "is_pipeline",
    "may_overlap",
    "names_on",
    "overlapping",
    "placements_for",
    "variants_for",
    "vocabulary_barriers",
]


@cache
def families() -> dict[str, Family]:
    """All families by name."""
    return {family.name: family for _, family in discover(__name__, "FAMILY")}


def current_name(name: str) -> str:
    """Return the name that a family has here, given one of papers, frameworks or old versions.

    Options behind a colon stay; names that are not known are returned as they are.
    """
    return names.current_name(name, families())


def generate(
    name: str,
    num_ranks: int,
    num_micro_batches: int,
    *,
    costs: Costs | None = None,
    caps_bytes: Sequence[int] | None = None,
    where: Placement | None = None,
    below_us: int | None = None,
    objective: Objective = Objective.PERIOD,
) -> Schedule:
    """Make a family's schedule on the placement that the family is defined on.

    Args:
        name: the name of a family; behind a colon its options, such as the number of rounds:
            `interleaved:3`, `interleaved:3,group=5`, `chimera:doubling`.
        num_ranks: the placement follows from it and from the family.
        costs: the costs of the placement's stages, for families that read costs; None: equal
            stages with F = B = W.
        caps_bytes: the most that each rank may hold, for families that are made to a limit.
        where: the same placement with the ranks in another order, or of other stages where the
            family admits that; None: as the family has them.
        below_us: a makespan from which on the schedule is of no use, so that families that try
            many may end sooner; None: it is made in any case.
        objective: by which a family that tries several schedules takes the best.

    Raises:
        SynthError: no such family, numbers that its definition does not admit, or no schedule below
            `below_us`.
    """
    if not isinstance(name, str):
        raise SynthError(f"{name!r:.60} is no name of a family; give a text such as '1f1b'")
    family, options = _find(name)
    if not (isinstance(num_ranks, Integral) and isinstance(num_micro_batches, Integral)):
        raise SynthError(
            f"{name} was given {num_ranks!r:.40} ranks and {num_micro_batches!r:.40} "
            f"micro-batches; give whole numbers"
        )
    if num_ranks < 1 or num_micro_batches < 1:
        raise SynthError(
            f"{name} needs at least one rank and one micro-batch, "
            f"given {num_ranks} and {num_micro_batches}"
        )
    plain = family.place(num_ranks, options)
    where = where or plain
    if where != plain and where.with_ranks_in_order() != plain:
        plain = where  # stages of another number, which the family is made for as well
    if caps_bytes is not None and where != plain:
        caps_bytes = [caps_bytes[rank] for rank in where.rank_order]
    setting = Setting.of(plain, num_micro_batches, costs, caps_bytes)
    setting = replace(setting, options=options, below_us=below_us, objective=objective)
    return _on_ranks(family.schedule(setting), where)


def family_of(name: str) -> Family:
    """Return the family of a name with options."""
    return _find(name)[0]


def family_placement(name: str, num_ranks: int) -> Placement:
    """The placement on which `generate` puts a family, to divide a model for it.

    Raises:
        SynthError: the family or an option is unknown, or the number of ranks is below 1.
    """
    family, options = _find(name)
    return family.place(num_ranks, options)


def family_layout(name: str) -> str:
    """The name of that placement, as `placements.placement` takes it."""
    family, options = _find(name)
    return family.layout.format(**options)


def is_pipeline(name: str) -> bool:
    """True if a family's ranks hold different stages, not each a copy of all (data parallelism)."""
    return not is_all_stages(family_layout(name))


def vocabulary_barriers(name: str) -> int:
    """Return the barriers with which a family divides the vocabulary; 0: it does not."""
    family, options = _find(name)
    return family.vocabulary(options) if family.vocabulary else 0


def placements_for(num_ranks: int, num_layers: int) -> dict[str, Placement]:
    """Return the placements of `variants_for`, by name, that need no more stages than layers.

    Raises:
        SynthError: a number of ranks below 1.
    """
    found: dict[str, Placement] = {}
    for name in variants_for(num_ranks, num_layers):
        if not is_pipeline(name):
            continue  # the search is for pipelines; data parallelism is named, or compared
        where = family_placement(name, num_ranks)
        if where.backward_ranks is not None:
            continue  # no search orders ops there
        if where.num_stages <= num_layers and where not in found.values():
            found[family_layout(name)] = where
    return found


def variants_for(num_ranks: int, num_layers: int) -> list[str]:
    """The variants for a number of ranks and layers.

    Families with rounds also occur with the fewest rounds that divide the layers evenly. With other
    numbers stages are unequal, and the time lost by that is not the schedule's fault.

    Raises:
        SynthError: the number of ranks is below 1.
    """
    names = []
    for family in families().values():
        for options in variants(family.options):
            even = _evenly(family, options, num_ranks, num_layers)
            for chosen in (options, options | even) if even else (options,):
                names.append(spelled(family.name, family.options, chosen))
    return names


def overlapping(names: Iterable[str]) -> Iterator[str]:
    """Yield those of the variants whose F and BW can run at once, with that option.

    Raises:
        SynthError: a family or an option is unknown.
    """
    for name in names:
        family, options = _find(name)
        if PAIRS in family.options:
            yield spelled(family.name, family.options, {**options, PAIRS.name: PAIRS.words[1]})


def may_overlap(name: str) -> bool:
    """True if F and BW of a variant can run at once."""
    return _find(name)[1].get(PAIRS.name) == PAIRS.words[1]


def _evenly(
    family: Family, options: dict[str, int | str], num_ranks: int, num_layers: int
) -> dict[str, int | str]:
    """The least number of rounds that gives all stages equally many layers, if it is larger."""
    least = options.get(ROUNDS)
    if not isinstance(least, int):
        return {}
    # Stages are as many more with each round, so two placements tell all numbers.
    first, second = (
        family.place(num_ranks, {**options, ROUNDS: rounds}).num_stages
        for rounds in (least, least + 1)
    )
    counts = range(first, max(first, num_layers) + 1, second - first)
    even = (least + more for more, num_stages in enumerate(counts) if not num_layers % num_stages)
    rounds = next(even, least)
    return {ROUNDS: rounds} if rounds > least else {}


def generate_for(
    placement: Placement,
    num_micro_batches: int,
    costs: Costs | None = None,
    caps_bytes: Sequence[int] | None = None,
    *,
    timed: bool | None = None,
    objective: Objective = Objective.PERIOD,
) -> Iterator[tuple[str, Schedule]]:
    """Yield each published schedule that is defined on exactly this placement and numbers.

    They are made on demand, those that need no costs first. Families with weight passing, with
    versions of weights or with a divided vocabulary are left out: no search begins with them.

    Args:
        placement: the placement; its ranks may be in another order.
        costs: the costs of the stages; None: equal stages.
        caps_bytes: the memory limit of each rank; None: no limits.
        timed: only families that read costs, or only those that do not; None: both.
        objective: by which a family that tries several schedules takes the best.

    Raises:
        SynthError: there is no micro-batch, or the costs or limits are for other stages or ranks.
    """
    Setting.of(placement, num_micro_batches, costs, caps_bytes)
    order, plain = placement.rank_order, placement.with_ranks_in_order()
    caps = None if caps_bytes is None else [caps_bytes[rank] for rank in order]
    setting = replace(Setting.of(plain, num_micro_batches, costs, caps), objective=objective)
    for family in sorted(families().values(), key=lambda family: (family.timed, family.name)):
        if timed is not None and family.timed != timed:
            continue
        if not family.orders_chains:
            continue
        for options in _options_on(family, plain):
            try:
                schedule = family.schedule(replace(setting, options=options, outcomes={}))
            except SynthError:
                continue  # its definition does not admit the numbers
            yield schedule.name, _on_ranks(schedule, placement)


def names_on(placement: Placement) -> list[str]:
    """Return the names of the published schedules that `generate_for` makes on a placement."""
    return [
        spelled(family.name, family.options, options)
        for family in families().values()
        if family.orders_chains
        for options in _options_on(family, placement.with_ranks_in_order())
    ]


def _on_ranks(schedule: Schedule, placement: Placement) -> Schedule:
    """Return a schedule with its programs on the ranks of the placement in another order."""
    if schedule.placement == placement:
        return schedule
    of_rank = dict(zip(placement.rank_order, schedule.programs, strict=True))
    programs = tuple(of_rank[rank] for rank in range(schedule.num_ranks))
    return replace(schedule, placement=placement, programs=programs)


def _find(name: str) -> tuple[Family, Options]:
    """Return a family, and the options behind its name."""
    base, colon, behind = current_name(name).partition(":")
    known = families()
    if base not in known:
        similar = did_you_mean(base, known)
        raise SynthError(f"family {name!r} is unknown; known: {', '.join(sorted(known))}{similar}")
    return known[base], parse(base, known[base].options, behind if colon else None)


def _options_on(family: Family, placement: Placement) -> list[Options]:
    """Return the options with which a family uses a placement; None if it cannot."""
    most = placement.num_stages // placement.num_ranks
    tried = variants(family.options, most)
    return [chosen for chosen in tried if family.place(placement.num_ranks, chosen) == placement]
