"""Gradient reduction: copies of a stage on different ranks add up their gradients before STEP.

Bidirectional pipelines hold several replicas of the stages. When every copy of a stage has done its
last W, the ranks that hold copies reduce the gradient in a ring, in place, and compute meanwhile.
The STEP of each copy waits for the reduction. Copies on one rank share that rank's part of it.
A rank that is a group of devices with data-parallel ranks among them (`StageCosts.reduce_us`) also
has a reduction for each stage that it holds alone.

Reductions among the same set of ranks run one after another, as the collectives of a communicator
do, so their order must be the same on all of these ranks. They are ordered by the place of the
stage's last W in its rank's program (the largest over the ranks), then by stage. This follows from
the order of ops alone. It cannot deadlock: a reduction waits for ops before STEPs and for earlier
reductions, and only STEPs, with which programs end, wait for it.

In a schedule that is not `eager` every reduction waits until its ranks have run all their ops.
"""

from collections import defaultdict
from enum import StrEnum
from itertools import product
from typing import NamedTuple

import numpy as np

from synth.costs.costs import Costs
from synth.op_kinds import OpKind
from synth.schedule.arrays import OpArrays


class CollectiveKind(StrEnum):
    """A collective among the ranks that hold copies of a stage."""

    ALL_REDUCE = "all-reduce"
    GATHER = "all-gather"
    SCATTER = "reduce-scatter"


class Collective(NamedTuple):
    """A collective over one stage; `ranks` ascend.

    An all-reduce adds up the gradients of all copies. With weight passing, an all-gather brings
    the weights of visit `number` from their homes to each of them, and a reduce-scatter the
    gradients of REDUCE_GRAD `number`.
    """

    stage: int
    ranks: tuple[int, ...]
    num_bytes: int
    duration_us: int
    kind: CollectiveKind = CollectiveKind.ALL_REDUCE
    number: int = 0

    def __str__(self) -> str:
        """The readable form: `gradient of stage 2 among ranks 1, 2`."""
        what = "weights" if self.kind == CollectiveKind.GATHER else "gradient"
        if self.is_within_rank:
            return f"{what} of stage {self.stage} among the devices of rank {self.ranks[0]}"
        return f"{what} of stage {self.stage} among ranks {', '.join(map(str, self.ranks))}"

    @property
    def is_within_rank(self) -> bool:
        """True if the devices of one rank reduce gradients, which no program of a rank starts.

        A single rank that shards its weights still starts the collectives of its shares.
        """
        return self.kind == CollectiveKind.ALL_REDUCE and len(self.ranks) == 1

    @property
    def sent_bytes(self) -> int:
        """The bytes that all ranks together send, as in a ring."""
        rounds = 2 if self.kind == CollectiveKind.ALL_REDUCE else 1
        return rounds * (len(self.ranks) - 1) * self.num_bytes


class PlacedCollective(NamedTuple):
    """A collective with its places in the programs.

    Attributes:
        after: for each of its ranks, the place of the op after which it starts there; −1: it
            starts before the first op.
        waits_for: the nodes that it waits for, such as the last W (or BW) of each copy.
        awaited_by: the nodes that wait for it, such as the STEPs.
        waits: for each of its ranks, the place of the op before which its buffer is freed; None: it
            works in place, or makes a value that readers free.
    """

    collective: Collective
    after: tuple[int, ...]
    waits_for: list[int]
    awaited_by: list[int]
    waits: tuple[int, ...] | None = None


class _Copies(NamedTuple):
    """A stage's copies: their ranks, the nodes that their reduction waits for, and their STEPs."""

    stage: int
    ranks: tuple[int, ...]
    lasts: list[int]
    steps: list[int]


def find_reductions(arrays: OpArrays, costs: Costs) -> list[list[PlacedCollective]]:
    """The reductions of a schedule: one list for each set of ranks, in order.

    On a rank a reduction starts after its copies' last W (if the schedule is not eager, after all
    ops), or after the start of the previous reduction, if that is later. A stage whose copies are
    all on one rank needs none unless the devices of that rank reduce its gradients, because
    programs end with their STEPs.
    """
    groups: defaultdict[tuple[int, ...], list[PlacedCollective]] = defaultdict(list)
    drafts = []
    if len(arrays.schedule.placement.ranks) == 1 and not any(s.reduce_us for s in costs.stages):
        return []
    for copies in _all_copies(arrays):
        after = _places(arrays, copies)
        drafts.append((max(after), copies.stage, copies, after))
    for _, stage, copies, after in sorted(drafts):
        if len(copies.ranks) > 1 or costs.stages[stage].reduce_us:
            others = groups[copies.ranks]
            if others:
                after = tuple(map(max, after, others[-1].after))
            num_bytes = costs.stages[stage].gradient_bytes
            placement = arrays.schedule.placement
            duration_us = costs.reduction_us(
                stage,
                copies.ranks,
                is_alone=placement.is_alone(stage),
                held=placement.held_by_all(copies.ranks),
            )
            reduction = Collective(stage, copies.ranks, num_bytes, duration_us)
            others.append(PlacedCollective(reduction, after, copies.lasts, copies.steps))
    return list(groups.values())


def _all_copies(arrays: OpArrays) -> list[_Copies]:
    placement = arrays.schedule.placement
    if arrays.schedule.weights is not None:
        return []
    lasts = _last_nodes(arrays, OpKind.W, OpKind.BW)
    steps = _last_nodes(arrays, OpKind.STEP)
    ends = None if arrays.schedule.eager else _last_of_ranks(arrays)
    copies = []
    for stage, held_by in enumerate(zip(*placement.ranks, strict=True)):
        ranks = tuple(sorted(set(held_by)))
        waits_for = lasts[stage] if ends is None else [ends[rank] for rank in ranks]
        waited = [node for node in waits_for if node >= 0]
        copies.append(_Copies(stage, ranks, waited, [n for n in steps[stage] if n >= 0]))
    return copies


def _last_of_ranks(arrays: OpArrays) -> list[int]:
    """The last op of every rank that is not a STEP, or −1."""
    last = np.full(len(arrays.ops), -1)
    node = (~arrays.of_step).nonzero()[0]
    last[arrays.rank[node]] = node
    found: list[int] = last.tolist()
    return found


def _last_nodes(arrays: OpArrays, *kinds: OpKind) -> list[list[int]]:
    """The last op of some kinds for every stage copy, [stage][replica], or −1."""
    num_replicas = len(arrays.schedule.placement.ranks)
    last = np.full((arrays.num_stages, num_replicas), -1)
    node = arrays.of_kinds(*kinds).nonzero()[0]
    last[arrays.stage[node], arrays.replica[node]] = node
    found: list[list[int]] = last.tolist()
    return found


def _places(arrays: OpArrays, copies: _Copies) -> tuple[int, ...]:
    """The place of the last W on each of the stage's ranks, or −1."""
    where = [(int(arrays.rank[node]), node) for node in copies.lasts]
    return tuple(
        max((node - arrays.first_node[r] for r, node in where if r == rank), default=-1)
        for rank in copies.ranks
    )


def find_update_reductions(arrays: OpArrays, costs: Costs) -> list[list[PlacedCollective]]:
    """The reductions of a schedule whose weights have versions, by stage, in order of the updates.

    A rank without a micro-batch in an update takes part after its update before.
    """
    schedule = arrays.schedule
    shared = [stage for stage, ranks in enumerate(schedule.placement.holders) if len(ranks) > 1]
    if not shared:
        return []
    lasts = _last_gradients(arrays)
    step = arrays.of_step.nonzero()[0]
    keys = (arrays.stage[step], arrays.microbatch[step], arrays.rank[step])
    steps = dict(zip(zip(*(key.tolist() for key in keys), strict=True), step.tolist(), strict=True))
    groups = []
    for stage in shared:
        ranks = tuple(sorted(schedule.placement.holders[stage]))
        duration_us = costs.reduction_us(stage, ranks)
        num_bytes = costs.stages[stage].gradient_bytes
        group: list[PlacedCollective] = []
        for number in range(schedule.num_micro_batches // schedule.update_sizes[stage]):
            reduction = Collective(stage, ranks, num_bytes, duration_us, number=number)
            found = [lasts.get((stage, number, rank)) for rank in ranks]
            waits_for = [node for node in found if node is not None]
            awaited_by = [steps[key] for key in product([stage], [number], ranks) if key in steps]
            after = []
            for rank, node in zip(ranks, found, strict=True):
                node = steps.get((stage, number - 1, rank)) if node is None else node
                after.append(-1 if node is None else node - arrays.first_node[rank])
            group.append(PlacedCollective(reduction, tuple(after), waits_for, awaited_by))
        groups.append(group)
    return groups


def _last_gradients(arrays: OpArrays) -> dict[tuple[int, int, int], int]:
    """By stage, update and rank the last op whose gradient the update takes."""
    add = arrays.of_kinds(OpKind.W, OpKind.BW).nonzero()[0]
    batch = arrays.microbatch[add] // arrays.update_size[add]
    keys = zip(arrays.stage[add].tolist(), batch.tolist(), arrays.rank[add].tolist(), strict=True)
    # Of equal keys the last one counts, and nodes are in the order of the programs.
    return dict(zip(keys, add.tolist(), strict=True))
