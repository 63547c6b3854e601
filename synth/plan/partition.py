"""Cutting a model's layers into stages so that the busiest rank has as little work as possible."""

from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from synth.errors import SynthError
from synth.plan.rebalance import rebalance
from synth.plan.stage_table import StageTable
from synth.profile import Profile
from synth.schedule.model import Placement


def is_proven_best(placement: Placement, given: Sequence[int] | None) -> bool:
    """Whether no partition serves better: proven of a balance with stage k on rank k, and no other.

    `given` is the partition that was asked for; none: `balance` made it.
    """
    return given is None and placement == Placement.linear(placement.num_ranks)


class _Score(NamedTuple):
    """What a partition is judged by, smaller first; squares break ties towards even stages."""

    largest_us: int
    sum_of_squares: int

    def plus(self, work_us: int) -> "_Score":
        """The score with one more stage."""
        return _Score(max(self.largest_us, work_us), self.sum_of_squares + work_us**2)


_Run = tuple[int, int]
_Partial = tuple[_Score, tuple[int, ...]]


def balance(
    profile: Profile,
    placement: Placement,
    caps_bytes: Sequence[int] | None = None,
    num_micro_batches: int | None = None,
    recompute: Collection[int] = (),
) -> tuple[int, ...]:
    """Choose how many layers each stage gets.

    Of the partitions in which every rank can run one micro-batch under its cap, the one with the
    least largest work (F + B + W) of a rank, then the least sum of squares of the work. Where no
    partition keeps the caps, the one that fits under the smallest limit for all ranks alike.

    With stage k on rank k that is exact, by dynamic programming over all cuts. Where ranks hold
    more, local search: see `rebalance`.

    Args:
        caps_bytes: one for each rank; none: memory does not matter.
        num_micro_batches: how many the replicas share; none: each gets as many.
        recompute: stages whose work is R's time too; what they need is taken as without R.

    Raises:
        SynthError: fewer layers than stages.
    """
    num_layers, num_stages = len(profile.layers), placement.num_stages
    is_linear = placement == Placement.linear(num_stages)
    if num_stages > num_layers:
        way_out = f"use 1 to {num_layers} ranks" if is_linear else "use fewer ranks or rounds"
        raise SynthError(
            f"{num_stages} stages asked for, the profile has {num_layers} layers; every stage "
            f"needs one layer at least: {way_out}, or profile a deeper model"
        )
    table = StageTable(profile)
    if is_linear:
        return _balance_linear(table, num_stages, caps_bytes, recompute)
    return rebalance(table, placement, caps_bytes, num_micro_batches, recompute)


def smallest_limit_of_any(profile: Profile, num_ranks: int) -> int:
    """The least limit for all ranks alike that some partition keeps, with one stage per rank.

    Args:
        num_ranks: no more than there are layers.
    """
    return _smallest_limit_bytes(StageTable(profile), num_ranks)


def _balance_linear(
    table: StageTable,
    num_stages: int,
    caps_bytes: Sequence[int] | None,
    recompute: Collection[int],
) -> tuple[int, ...]:
    """Exact for one stage per rank."""
    free = _most_even(table, [None] * num_stages, recompute)
    assert free is not None
    if caps_bytes is None or _keeps(table, free, caps_bytes):
        return free
    fitting = _most_even(table, caps_bytes, recompute)
    if fitting is None:
        limit = _smallest_limit_bytes(table, num_stages)
        fitting = _most_even(table, [limit] * num_stages, recompute)
    assert fitting is not None
    return fitting


def _keeps(table: StageTable, sizes: Sequence[int], caps_bytes: Sequence[int]) -> bool:
    edges = [sum(sizes[:stage]) for stage in range(len(sizes) + 1)]
    needs = (table.need_bytes(first, end) for first, end in pairwise(edges))
    return all(need <= cap for need, cap in zip(needs, caps_bytes, strict=True))


def _most_even(
    table: StageTable, caps_bytes: Sequence[int | None], recompute: Collection[int]
) -> tuple[int, ...] | None:
    """The best partition that keeps the caps, if there is one."""
    num_layers = table.num_layers
    # best[end]: the partitions of the layers before `end` that may still turn out best.
    best: list[list[_Partial]] = [[] for _ in range(num_layers + 1)]
    best[0] = [(_Score(0, 0), ())]
    for stage, cap in enumerate(caps_bytes):
        fitting = {
            (first, end): table.work_us(first, end, recompute=stage in recompute)
            for first, end in _runs(num_layers)
            if best[first] and (cap is None or table.need_bytes(first, end) <= cap)
        }
        best = [_pareto(_extended(best, fitting, end)) for end in range(num_layers + 1)]
    return min(best[num_layers])[1] if best[num_layers] else None


def _smallest_limit_bytes(table: StageTable, num_stages: int) -> int:
    """The least over all partitions of the most that a stage needs."""
    num_layers = table.num_layers
    needs = {run: table.need_bytes(*run) for run in _runs(num_layers)}
    never = sum(needs.values()) + 1
    least = [0] + [never] * num_layers
    for _ in range(num_stages):
        least = [
            min((max(least[i], needs[i, end]) for i in range(end)), default=never)
            for end in range(num_layers + 1)
        ]
    return least[num_layers]


def _runs(num_layers: int) -> Iterator[_Run]:
    """The first layer and the end of every run of layers."""
    for first in range(num_layers):
        for end in range(first + 1, num_layers + 1):
            yield first, end


def _extended(best: list[list[_Partial]], works: dict[_Run, int], end: int) -> Iterator[_Partial]:
    """Every kept partition of fewer layers, with one more stage up to `end`."""
    for first in range(end):
        if (first, end) in works:
            for score, sizes in best[first]:
                yield score.plus(works[first, end]), (*sizes, end - first)


def _pareto(partials: Iterator[_Partial]) -> list[_Partial]:
    """Drop what another one beats in every respect: a worse maximum may hide behind a later one."""
    kept: list[_Partial] = []
    for partial in sorted(partials):
        if not any(all(a <= b for a, b in zip(k[0], partial[0], strict=True)) for k in kept):
            kept.append(partial)
    return kept
