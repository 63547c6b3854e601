"""The least span of a rank over mixtures of the choices of its stages.

It is a linear program (`mixture_program`), whose columns are the ways in which the micro-batches of
a stage copy may pass:

    choice     which layers B recomputes, or R, with which the rank keeps least after F
    warm-up    F before the first B of the rank, or F and R, or neither
    cooldown   B and W after the last F of the rank, or W, or neither

The end is no less than any of five rows:

    its work, with all recomputation
    bytes times lifetimes over its memory (Little 1961, "A proof for the queuing formula L = λW")
    the first B's earliest start and all work but the warm-up's
    the head, all work but the cooldown's, and the way of the last gradient
    the first B's earliest start, all work but that of both, and the way of the last gradient

What runs in the warm-up, and in the cooldown, was or is held by the rank at one moment, the start
of the first B or the end of the last F; so its bytes have a limit each (`solver.bounds.ramps`).
What R rebuilds counts from there on. It also fits between the head of its copy and the first B, or
between the last F and the STEPs. If one of these times is longer than the least one, no more than
the difference fits besides, so the least one bounds all.

If no F comes after the first B, the last row does not hold, but all F's are in the warm-up, however
long that is. So the bound is the lesser one of two programs.

Lifetimes are those without recomputation, which only lengthens them.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from synth.plan.partition.path_dp import NEVER
from synth.plan.recompute.mixture_program import MixtureProgram
from synth.solver.bounds.ramps import after_last_f_us
from synth.solver.instance.instance import B, F, Instance, W

_OPS = (F, B, W)

# For each stage copy of a rank, the choices that are allowed.
_Allowed = tuple[tuple[int, ...], ...]


class MixtureWay(NamedTuple):
    """A choice of a stage, as places among the instances of a rank's program.

    Attributes:
        kept: the place that says what F keeps.
        again_us: the time of recomputation, that of R included.
        r_us: the time of R; 0 without one.
        rebuilt: the place that says what is held after R.
    """

    kept: int
    again_us: int
    r_us: int
    rebuilt: int


class _Column(NamedTuple):
    """All micro-batches of a stage copy in one way: times in µs, and bytes."""

    choice: int
    work_us: int
    held_byte_us: int
    warm_us: int
    warm_bytes: int
    cool_us: int
    cool_bytes: int
    is_warm: bool


class _Row(NamedTuple):
    """A bound of the end: a constant, and figures of columns with their factors."""

    constant_us: int
    factors: dict[str, int]


def rank_programs(
    seen: Sequence[Instance], ways: Sequence[Sequence[MixtureWay]], rank: int
) -> tuple["RankProgram", "RankProgram"]:
    """Return the programs of a rank's makespan and period.

    Args:
        seen: for each place, the problem with the choices there for all stages.
        ways: the ways of each stage.
    """
    plain = seen[0]
    groups = [[*_columns(seen, copy, ways[plain[copy].stage])] for copy in plain.held[rank]]
    return (
        RankProgram(plain, rank, groups, is_period=False),
        RankProgram(plain, rank, groups, is_period=True),
    )


def _columns(seen: Sequence[Instance], index: int, ways: Sequence[MixtureWay]) -> Iterator[_Column]:
    """Yield the columns of a stage copy."""
    helds = [_held_byte_us(instance, index) for instance in seen]
    plain = seen[0][index]
    count, times = plain.num_micro_batches, plain.duration_us
    for way in ways:
        kept = seen[way.kept][index].delta_bytes
        rebuilt_bytes = max(0, seen[way.rebuilt][index].delta_bytes[F] - kept[F])
        warms = [(0, 0, 0), (times[F], kept[F], 0)]
        if way.r_us:
            warms.append((times[F] + way.r_us, kept[F] + rebuilt_bytes, way.r_us))
        for place, (warm_us, warm_bytes, done_us) in enumerate(warms):
            left_us = times[B] + times[W] + way.again_us - done_us
            cools = [(0, 0), (times[W], -kept[W]), (left_us, -kept[B] - kept[W])]
            for cool_us, cool_bytes in cools:
                yield _Column(
                    way.kept,
                    count * (plain.work_us + way.again_us),
                    count * helds[way.kept],
                    count * warm_us,
                    count * warm_bytes,
                    count * cool_us,
                    count * cool_bytes,
                    place > 0,
                )


def _held_byte_us(instance: Instance, number: int) -> int:
    """Return the bytes times µs for which a stage copy holds them, for each micro-batch."""
    copy = instance[number]
    held = sum(copy.duration_us[kind] * max(0, copy.peak_above_bytes[kind]) for kind in _OPS)
    for lifetime in instance.lifetimes:
        if lifetime.made[0] == number:
            held += lifetime.num_bytes * instance.shortest_lifetime_us(lifetime)
    return held


class RankProgram:
    """The least end of a rank, or of all ranks that its last gradient reaches, over all ways."""

    def __init__(
        self,
        instance: Instance,
        rank: int,
        groups: Sequence[Sequence[_Column]],
        *,
        is_period: bool,
    ) -> None:
        """Make the rows.

        Args:
            instance: with the least recomputation of all stages.
            groups: the columns of each stage copy of the rank.
            is_period: only the rank itself counts, from its origin.
        """
        self._groups = groups
        held, step_us = instance.held[rank], instance.step_us(rank)
        self._stages = [instance[copy].stage for copy in held]
        head_us = min(instance.head_us[copy] for copy in held)
        first_b_us = min(
            instance.head_us[copy] + instance[copy].duration_us[F] + instance.round_trip_us[copy]
            for copy in held
        )
        last_us = after_last_f_us(instance, rank, is_period=is_period)
        self._rows = [
            _Row(head_us + step_us, {"work_us": 1}),
            _Row(head_us + step_us, {"held_us": 1}),
        ]
        self._both: _Row | None = None
        self.origin_us = 0
        if is_period:
            origins_us = instance.origins_us
            self.origin_us = head_us if origins_us is None else origins_us[rank]
        if not is_period or instance.origins_us is not None:
            self._rows += [
                _Row(first_b_us + step_us, {"work_us": 1, "warm_us": -1}),
                _Row(head_us + last_us, {"work_us": 1, "cool_us": -1}),
            ]
            both = {"work_us": 1, "warm_us": -1, "cool_us": -1}
            self._both = _Row(first_b_us + last_us, both)
            self._rows += self._ways_up(instance, held, head_us, first_b_us, is_period=is_period)
        # F's of a copy begin after its head, and what runs after the last F ends before the STEPs.
        self._windows_us = [first_b_us - instance.head_us[copy] for copy in held]
        self._cooldown_us = last_us - step_us
        room = instance.headroom_bytes[rank]
        self._room = max(0, room or 0)

    def _ways_up(
        self,
        instance: Instance,
        held: Sequence[int],
        head_us: int,
        first_b_us: int,
        *,
        is_period: bool,
    ) -> Iterator[_Row]:
        """Yield rows for the way of the last gradient, which leaves after all but the W's."""
        if any(copy.replica for copy in instance.copies):
            return
        weights_us = sum(instance[copy].total_us(W) for copy in held)
        ends_us = []
        for above, way_us in instance.ways_up_us(held[0]):
            copy = instance[above]
            left_us = copy.duration_us[B] + copy.duration_us[W] + instance.step_us(copy.rank)
            if is_period and instance.origins_us is not None:
                left_us += self.origin_us - instance.origins_us[copy.rank]
            ends_us.append(way_us + left_us)
        if ends_us:
            after_us = max(ends_us) - weights_us
            yield _Row(head_us + after_us, {"work_us": 1})
            yield _Row(first_b_us + after_us, {"work_us": 1, "warm_us": -1})

    def least_us(
        self, most_branches: int, allowed: Mapping[int, Collection[int]] | None = None
    ) -> int:
        """Return a bound over all ways, by branching over the choices of the stage copies.

        A node allows some choices of each copy, and mixes them. Branch and bound (Land and Doig
        1960) divides the least node at the stage copy whose mixture is no choice.

        Args:
            most_branches: the nodes to look at, at least 1.
            allowed: by stage, the choices that are allowed; None: all.
        """
        root = tuple(
            tuple({one.choice: None for one in group if of is None or one.choice in of})
            for group, of in zip(self._groups, map((allowed or {}).get, self._stages), strict=True)
        )
        nodes = [self._node(root)]
        for _ in range((most_branches - 1) // 2):
            least = nodes[0]
            if least.split is None:
                break
            heappop(nodes)
            for part in least.divided():
                heappush(nodes, self._node(part))
        return nodes[0].bound_us - self.origin_us

    def _node(self, allowed: _Allowed) -> "_Node":
        """Mix the allowed choices; the lesser one of both programs bounds them."""
        groups = [
            [one for one in group if one.choice in choices]
            for group, choices in zip(self._groups, allowed, strict=True)
        ]
        if not self._room:
            busy_us = sum(min(one.work_us for one in group) for group in groups)
            return _Node(self._rows[0].constant_us + busy_us, allowed, None)
        if self._both is None:
            return self._mixed(allowed, self._rows, groups, has_windows=False)
        later = self._mixed(allowed, [*self._rows, self._both], groups, has_windows=True)
        all_warm = [[one for one in group if one.is_warm] for group in groups]
        at_once = self._mixed(allowed, self._rows, all_warm, has_windows=False)
        return later if later.bound_us <= at_once.bound_us else at_once

    def _mixed(
        self,
        allowed: _Allowed,
        rows: Sequence[_Row],
        groups: Sequence[Sequence[_Column]],
        *,
        has_windows: bool,
    ) -> "_Node":
        """Solve a program.

        Args:
            allowed: the choices of the columns.
            has_windows: what is in the warm-up and in the cooldown has the time of these.
        """
        table = np.array([one for group in groups for one in group], float).T
        of_name = dict(zip(_Column._fields, table, strict=True))
        of_name["held_us"] = of_name["held_byte_us"] / self._room
        first = np.cumsum([0, *map(len, groups[:-1])])
        needs = []
        for name in ("warm_bytes", "cool_bytes"):
            # Ops that free memory make room for others.
            freed = np.minimum.reduceat(np.minimum(of_name[name], 0), first).sum()
            needs.append(np.maximum(of_name[name], 0) / (self._room - freed))
        if has_windows:
            windows_us = np.repeat(self._windows_us, [len(group) for group in groups])
            for window_us in dict.fromkeys(self._windows_us):
                in_window = np.where(windows_us <= window_us, of_name["warm_us"], 0)
                needs.append(in_window / max(1, window_us))
            needs.append(of_name["cool_us"] / max(1, self._cooldown_us))
        scale = max(1.0, of_name["work_us"].sum())
        loads = [sum(sign * of_name[name] for name, sign in row.factors.items()) for row in rows]
        constants = np.array([row.constant_us for row in rows]) / scale
        program = MixtureProgram(constants, np.array(loads) / scale, np.array(needs), first)
        found = program.least()
        if found is None:
            return _Node(NEVER, allowed, None)
        shares = [
            _shares_of_choices(group, found.shares[of])
            for group, of in zip(groups, program.groups, strict=True)
        ]
        split = max(range(len(shares)), key=lambda group: 1 - max(shares[group].values()))
        mean = sum(choice * share for choice, share in shares[split].items())
        is_mixed = max(shares[split].values()) < 1 - 1e-6
        bound_us = math.ceil(found.value * scale * (1 - 1e-9))
        return _Node(bound_us, allowed, _Split(split, mean) if is_mixed else None)


def _shares_of_choices(
    group: Sequence[_Column], shares: npt.NDArray[np.float64]
) -> dict[int, float]:
    """Return the share of each choice of a stage copy."""
    found: dict[int, float] = {}
    for column, share in zip(group, shares, strict=True):
        found[column.choice] = found.get(column.choice, 0.0) + float(share)
    return found


class _Split(NamedTuple):
    """The division of a node: a stage copy of the rank, and the mean of its choices."""

    group: int
    mean: float


class _Node(NamedTuple):
    """Allowed choices of each stage copy of a rank, and their bound; the least sorts first.

    `split` is None if the mixture is one choice of each.
    """

    bound_us: int
    allowed: _Allowed
    split: _Split | None

    def divided(self) -> Iterator[_Allowed]:
        """Yield the allowed choices in two parts."""
        assert self.split is not None
        group, mean = self.split
        for is_above in (False, True):
            part = tuple(c for c in self.allowed[group] if (c > mean) == is_above)
            yield (*self.allowed[:group], part, *self.allowed[group + 1 :])
