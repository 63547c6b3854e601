"""Every published schedule as a generator: one file each, found by being in this folder.

A family's module defines `FAMILY`; nothing else needs to know of it. A family is defined on one
kind of placement; `generate` asks for it by name, `generate_for` for all that a placement admits.
"""

import importlib
import pkgutil
import re
from collections.abc import Iterator, Sequence
from functools import cache

from synth.costs import Costs
from synth.errors import SynthError
from synth.families.family import Family, Setting
from synth.schedule.model import Placement, Schedule

__all__ = ["Family", "Setting", "families", "family_placement", "generate", "generate_for"]


@cache
def families() -> dict[str, Family]:
    """All families by name."""
    found = {}
    for module in pkgutil.iter_modules(__path__):
        family = getattr(importlib.import_module(f"{__name__}.{module.name}"), "FAMILY", None)
        if family is not None:
            found[family.name] = family
    return found


def generate(
    name: str,
    num_ranks: int,
    num_micro_batches: int,
    *,
    costs: Costs | None = None,
    caps_bytes: Sequence[int] | None = None,
) -> Schedule:
    """Make a family's schedule on the placement that the family is defined on.

    Args:
        name: of a family; behind a colon, where it has one, its number of rounds:
            `interleaved:3`.
        num_ranks: the placement follows from it and from the family.
        num_micro_batches: in one mini-batch.
        costs: of the placement's stages, for families that are made to measure; none: equal
            stages with F = B = W.
        caps_bytes: the most that each rank may hold, for families that are made to a limit.

    Raises:
        SynthError: no such family, or numbers that its definition does not admit.
    """
    family, rounds = _find(name)
    if num_ranks < 1 or num_micro_batches < 1:
        raise SynthError(
            f"{name} needs at least one rank and one micro-batch, "
            f"given {num_ranks} and {num_micro_batches}"
        )
    where = family.place(num_ranks, rounds)
    return family.schedule(Setting.of(where, num_micro_batches, costs, caps_bytes), rounds)


def family_placement(name: str, num_ranks: int) -> Placement:
    """The placement that `generate` puts a family on, so that a model can be cut for it.

    Raises:
        SynthError: no such family, or a number of ranks or rounds below 1.
    """
    family, rounds = _find(name)
    return family.place(num_ranks, rounds)


def generate_for(
    placement: Placement,
    num_micro_batches: int,
    costs: Costs | None = None,
    caps_bytes: Sequence[int] | None = None,
) -> Iterator[tuple[str, Schedule]]:
    """Every published schedule that is defined on exactly this placement and these numbers.

    They are made one by one, when asked for, those that need no costs first.

    Raises:
        SynthError: no micro-batch, or costs or caps for other stages or ranks.
    """
    setting = Setting.of(placement, num_micro_batches, costs, caps_bytes)
    for family in sorted(families().values(), key=lambda family: (family.timed, family.name)):
        for rounds in _rounds_on(family, placement):
            try:
                schedule = family.schedule(setting, rounds)
            except SynthError:
                continue  # its definition does not admit the numbers
            yield schedule.name, schedule


def _find(name: str) -> tuple[Family, int]:
    """A family and the number of rounds behind its name, 0 for none given."""
    base, colon, parameter = name.partition(":")
    known = families()
    if base not in known:
        raise SynthError(f"family {name!r} is unknown; known: {', '.join(sorted(known))}")
    if colon and not (known[base].has_rounds and re.fullmatch("[1-9][0-9]{0,3}", parameter)):
        rule = "a number of rounds from 1" if known[base].has_rounds else "nothing"
        raise SynthError(f"family {name!r} is not understood; {base} takes {rule} behind a colon")
    return known[base], int(parameter or 0)


def _rounds_on(family: Family, placement: Placement) -> list[int]:
    """The numbers of rounds with which a family stands on a placement; 0 where it has none."""
    most = placement.num_stages // placement.num_ranks
    tried = range(family.least_rounds, most + 1) if family.has_rounds else range(1)
    return [rounds for rounds in tried if family.place(placement.num_ranks, rounds) == placement]
