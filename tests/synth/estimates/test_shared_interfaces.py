"""The cost of a network interface that reductions share with transfers of the pipeline."""

from collections.abc import Iterator
from statistics import median
from typing import NamedTuple

import numpy as np
import pytest

from synth.costs.partition_costs import partition_costs
from synth.estimates.published import PublishedRun, published_runs
from synth.families import generate
from synth.schedule.lowering.lower import Lowered, lower
from synth.schedule.simulate import Timeline, simulate
from tests.sweep import sweep


class Shared(NamedTuple):
    """The transfers beside the reductions of a run, as shares of its step.

    Attributes:
        beside: transfers of a rank while it reduces, of the rank that has most of them.
        later: by which the last reduction ends later if the rank's transfers go first.
    """

    beside: float
    later: float


def shared_interface(run: PublishedRun) -> Shared | None:
    """Return what is sent beside reductions, of three micro-batches a rank; None: no reductions."""
    step = run.step
    profile = step.estimator.profile()
    costs = partition_costs(profile, step.stage_sizes(len(profile.layers)))
    if not any(stage.reduce_us for stage in costs.stages):
        return None
    count = min(step.micro_batches, 3 * step.ranks + step.micro_batches % step.ranks)
    name = "1f1b" if step.ranks == 1 else step.schedule
    lowered = lower(generate(name, step.ranks, count, costs=costs), costs)
    timeline = simulate(lowered)
    ends = list(_reductions(lowered, timeline))
    beside: dict[int, int] = {}
    for rank, start, end in ends:
        beside[rank] = beside.get(rank, 0) + _sent_us(lowered, timeline, rank, start, end)
    last = max(end for _, _, end in ends)
    later = max(_end_if_transfers_go_first(lowered, timeline, *one) for one in ends)
    us = step.us()
    return Shared(max(beside.values()) / us, (later - last) / us)


def _reductions(lowered: Lowered, timeline: Timeline) -> Iterator[tuple[int, int, int]]:
    """Yield the rank, start and end of each reduction within a rank."""
    begin = lowered.first_node[-1] + len(lowered.transfer_table)
    for node in lowered.reductions_within_ranks:
        (rank,) = lowered.collectives[node - begin].ranks
        yield rank, timeline.start_us[node], timeline.end_us[node]


def _sent_us(lowered: Lowered, timeline: Timeline, rank: int, start: int, end: int) -> int:
    """The time of a rank's transfers, in either direction, within a span."""
    table, first = lowered.transfer_table, lowered.first_node[-1]
    nodes = slice(first, first + len(table))
    begins, ends = np.array(timeline.start_us[nodes]), np.array(timeline.end_us[nodes])
    within = np.minimum(ends, end) - np.maximum(begins, start)
    is_own = (table.source == rank) | (table.target == rank)
    return int(within[is_own].clip(0).sum())


def _end_if_transfers_go_first(
    lowered: Lowered, timeline: Timeline, rank: int, start: int, end: int
) -> int:
    """The end of a reduction that waits for each transfer of its rank."""
    until = end
    while (later := end + _sent_us(lowered, timeline, rank, start, until)) > until:
        until = later
    return until


@pytest.mark.parametrize("part", sweep(range(3), daily=1))
def test_reductions_of_published_runs_hardly_meet_transfers(part: int) -> None:
    runs = [run for run in published_runs() if run.step.ranks > 1][part::3]
    shared = [found for run in runs if (found := shared_interface(run)) is not None]
    assert len(shared) > 20
    assert max(one.later for one in shared) < 0.0002
    assert median(one.beside for one in shared) < 0.0005
    assert 0 < max(one.beside for one in shared) < 0.02
