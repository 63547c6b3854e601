"""Delay, drift and number of versions of each stage, read off a lowered schedule."""

from typing import NamedTuple

import numpy as np

from synth.op_kinds import OpKind
from synth.schedule.lowering.lower import Lowered


class StageVersions(NamedTuple):
    """The versions of a stage, in numbers of updates; each figure is the largest that occurs.

    Attributes:
        delay: updates between the version that F read and the one that its gradient updates.
        backward_delay: the same for the version that B read.
        drift: updates between the versions that F and B of a micro-batch read.
        alive: versions that are held at a time, the newest included.
    """

    delay: int
    backward_delay: int
    drift: int
    alive: int


def version_facts(lowered: Lowered) -> tuple[StageVersions, ...]:
    """The facts of all stages; of a plan with one update, no delay and one version."""
    accesses, arrays = lowered.versions, lowered.arrays
    if accesses is None:
        return (StageVersions(0, 0, 0, 1),) * arrays.num_stages
    m = arrays.schedule.num_micro_batches
    read = np.zeros((2, arrays.num_stages, m), dtype=np.int64)
    for row, kinds in enumerate(((OpKind.F,), (OpKind.B, OpKind.BW))):
        node = arrays.of_kinds(*kinds).nonzero()[0]
        read[row, arrays.stage[node], arrays.microbatch[node]] = accesses.version[node]
    sizes = np.array(arrays.schedule.update_sizes)
    delay = (np.arange(m) // sizes[:, None] - read).max(axis=2).tolist()
    drift = np.abs(read[1] - read[0]).max(axis=1).tolist()
    alive = _alive(lowered)
    return tuple(
        StageVersions(*figures) for figures in zip(delay[0], delay[1], drift, alive, strict=True)
    )


def largest_versions(lowered: Lowered) -> StageVersions:
    """The largest figures of any stage, each by itself."""
    return StageVersions(*map(max, zip(*version_facts(lowered), strict=True)))


def _alive(lowered: Lowered) -> list[int]:
    """By stage the most versions that a rank holds after an op."""
    accesses, arrays = lowered.versions, lowered.arrays
    assert accesses is not None
    holders, holder = np.unique(arrays.holders, return_inverse=True)
    change = np.zeros((len(holders), arrays.num_nodes + 1), dtype=np.int64)
    made = accesses.makes
    np.add.at(change, (holder[made.node], made.node), 1)
    np.add.at(change, (holder[made.node], lowered.def_use.last_use[made.value]), -1)
    alive = np.zeros(arrays.num_stages, dtype=np.int64)
    np.maximum.at(alive, holders % arrays.num_stages, 1 + change.cumsum(axis=1).max(axis=1))
    found: list[int] = alive.tolist()
    return found
