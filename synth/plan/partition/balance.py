"""Partitioning a model's layers so that the busiest rank has as little work as possible."""

from collections.abc import Callable, Collection, Sequence
from itertools import pairwise

from synth.errors import SynthError
from synth.plan.partition.candidates import candidate_cuts
from synth.plan.partition.lifetime_cut import LifetimeCuts
from synth.plan.partition.most_even import Stopped, most_even, smallest_limit_bytes
from synth.plan.partition.rebalance import compromises, rebalance
from synth.plan.partition.stage_cost_table import StageCostTable
from synth.plan.partition.unequal_ranks import UnequalRanks
from synth.plan.tuning import BALANCE
from synth.profile import Profile
from synth.schedule.model import Placement
from synth.schedule.rank_memory import exceeds_caps
from synth.units import counted


def balance(
    profile: Profile,
    placement: Placement,
    caps_bytes: Sequence[int] | None = None,
    num_micro_batches: int | None = None,
    recompute: Collection[int] = (),
    should_stop: Callable[[], bool] = lambda: False,
) -> tuple[int, ...]:
    """Choose how many layers each stage gets.

    Of the partitions in which every rank can run one micro-batch under its cap, it is the one with
    the least largest work (F + B + W) of a rank, then the least sum of squares of the work. If no
    partition keeps the caps, it is the one that fits under the smallest limit for all ranks alike.

    With stage k on rank k that is exact, by dynamic programming over all partitions. So it is where
    backwards have ranks of their own: every stage comes to every rank, so the stages themselves are
    balanced, without caps. If ranks hold several stages, it is a local search: see
    `rebalance`. On ranks of unequal speed the time counts for the work, without R; see
    `unequal_ranks`.

    Args:
        caps_bytes: one for each rank; None: memory does not matter.
        num_micro_batches: shared by the replicas; None: each gets the same number.
        recompute: stages whose work includes R's time; their memory is taken as without R.
        should_stop: ends the local search where it stands. It ends exact passes over many layers,
            too; the answer is the most even partition without caps then.

    Raises:
        SynthError: fewer layers than stages.
    """
    num_stages = placement.num_stages
    is_linear = placement == Placement.linear(num_stages)
    _check_layers(len(profile.layers), placement)
    if profile.rank_speeds is not None:
        return UnequalRanks(profile, placement, caps_bytes).balanced(should_stop)
    table = StageCostTable(profile)
    if placement.backward_ranks is not None:
        return _balance_linear(table, num_stages, None, recompute, should_stop)
    if is_linear:
        return _balance_linear(table, num_stages, caps_bytes, recompute, should_stop)
    return rebalance(table, placement, caps_bytes, num_micro_batches, recompute, should_stop)


def _check_layers(num_layers: int, placement: Placement) -> None:
    """Refuse fewer layers than stages."""
    num_stages = placement.num_stages
    if num_stages <= num_layers:
        return
    is_linear = placement == Placement.linear(num_stages)
    way_out = f"use 1 to {num_layers} ranks" if is_linear else "use fewer ranks or rounds"
    raise SynthError(
        f"{counted(num_stages, 'stage')} asked for, the profile has "
        f"{counted(num_layers, 'layer')}; every stage needs one layer at least: {way_out}, or "
        f"profile a deeper model"
    )


def starting_cuts(
    table: StageCostTable,
    placement: Placement,
    caps_bytes: Sequence[int] | None = None,
    num_micro_batches: int | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> list[tuple[int, ...]]:
    """Return cuts from which searches begin.

    They are the candidates, under memory limits the one of `LifetimeCuts`, and with several stages
    per rank those between even ranks and even stages, the one of `balance` before all others.

    Args:
        should_stop: ends the local search for the latter.

    Raises:
        SynthError: fewer layers than stages.
    """
    _check_layers(table.num_layers, placement)
    found = candidate_cuts(table, placement.num_stages)
    if (cuts := LifetimeCuts.of(table, placement, caps_bytes)) is not None:
        found.append(cuts.best(found, should_stop))
    if is_rebalanced(placement):
        first, *others = compromises(table, placement, caps_bytes, num_micro_batches, should_stop)
        found = [first, *found, *others]
    return list(dict.fromkeys(found))


def is_rebalanced(placement: Placement) -> bool:
    """Return True if the balanced partition of equal ranks is that of `rebalance`."""
    is_linear = placement == Placement.linear(placement.num_stages)
    return not is_linear and placement.backward_ranks is None


def smallest_limit_of_any(profile: Profile, num_ranks: int) -> int:
    """The least limit for all ranks alike that some partition keeps, with one stage per rank.

    Args:
        num_ranks: no more than there are layers.
    """
    return smallest_limit_bytes(StageCostTable(profile), num_ranks)


def _balance_linear(
    table: StageCostTable,
    num_stages: int,
    caps_bytes: Sequence[int] | None,
    recompute: Collection[int],
    should_stop: Callable[[], bool],
) -> tuple[int, ...]:
    """Exact for one stage per rank."""
    free = most_even(table, [None] * num_stages, recompute)
    assert free is not None
    if caps_bytes is None or _keeps(table, free, caps_bytes):
        return free
    if table.num_layers <= BALANCE.few_layers:
        should_stop = _never
    try:
        fitting = most_even(table, caps_bytes, recompute, should_stop)
        if fitting is None:
            limit = smallest_limit_bytes(table, num_stages, should_stop)
            fitting = most_even(table, [limit] * num_stages, recompute, should_stop)
    except Stopped:
        return free
    assert fitting is not None
    return fitting


def _never() -> bool:
    return False


def _keeps(table: StageCostTable, sizes: Sequence[int], caps_bytes: Sequence[int]) -> bool:
    edges = [sum(sizes[:stage]) for stage in range(len(sizes) + 1)]
    needs = [table.need_bytes(first, end) for first, end in pairwise(edges)]
    return not exceeds_caps(needs, caps_bytes)
