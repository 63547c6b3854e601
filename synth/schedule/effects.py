"""The meaning of compute ops: which values each reads, and which it makes.

This table is the whole of the data model. Lowering derives dependencies, transfers and lifetimes
from it and knows nothing else about op kinds; a new kind of op is an entry here. `Effects` tells it
of single ops; `EffectTable` is the same in numbers, for all ops at once.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from synth.costs import Costs, CostTable, IntArray, StageCosts
from synth.kinds import OpKind
from synth.schedule.arrays import KIND_CODES
from synth.schedule.ops import Op, Value, ValueKind

ACT, GRAD, SAVED, SAVED_W, WGRAD = VALUE_KINDS = (
    ValueKind.ACT,
    ValueKind.GRAD,
    ValueKind.SAVED,
    ValueKind.SAVED_W,
    ValueKind.WGRAD,
)

_VALUE_CODES = {kind: code for code, kind in enumerate(VALUE_KINDS)}


class _Relative(NamedTuple):
    """A value of the op's own micro-batch and replica, `stage_offset` stages from the op's."""

    kind: ValueKind
    stage_offset: int = 0


_Rule = Callable[[tuple[StageCosts, ...], OpKind, int], list[_Relative]]


class Effects:
    """What ops read and make, for given stages and number of micro-batches.

    An activation is also *read* by the later ops of a layer that holds on to it (autograd saved
    it): which those are, the costs say. Weights are read by every F, B and BW; in a schedule that
    flushes there is one version, there from the start, so it neither orders nor frees anything.
    """

    def __init__(self, costs: Costs, num_micro_batches: int) -> None:
        self._stages = costs.stages
        self._num_micro_batches = num_micro_batches

    def reads(self, op: Op) -> list[Value]:
        """The values that must be on the rank when the op starts."""
        kind, s, j, r = op
        if kind == OpKind.STEP:
            return [Value(WGRAD, s, k, r) for k in range(self._num_micro_batches)]
        return [Value(k, s + offset, j, r) for k, offset in _reads(self._stages, kind, s)]

    def makes(self, op: Op) -> list[Value]:
        """The values that the op leaves on its rank."""
        kind, s, j, r = op
        return [Value(k, s + offset, j, r) for k, offset in _makes(self._stages, kind, s)]

    def bytes_of(self, value: Value) -> int:
        """The size of a value; wgrad is part of the static bytes."""
        stage = self._stages[value.stage]
        if value.kind in (ACT, GRAD):
            return stage.output_bytes
        if value.kind == SAVED:
            return stage.saved_bytes
        return stage.saved_w_bytes if value.kind == SAVED_W else 0


def _reads(stages: tuple[StageCosts, ...], kind: OpKind, s: int) -> list[_Relative]:
    """What an op reads, but for STEP, which reads the WGRAD of every micro-batch."""
    if kind == OpKind.STEP:
        return []
    stage = stages[s]
    values = []
    if s > 0 and _needed(kind, stage.input_until):
        values.append(_Relative(ACT, -1))
    if s < len(stages) - 1 and kind != OpKind.F:
        if _needed(kind, stage.output_until):
            values.append(_Relative(ACT))
        if _needed(kind, stage.gradient_until):
            values.append(_Relative(GRAD))
    if kind in (OpKind.B, OpKind.BW):
        values.append(_Relative(SAVED))
    elif kind == OpKind.W:
        values.append(_Relative(SAVED_W))
    return values


def _makes(stages: tuple[StageCosts, ...], kind: OpKind, s: int) -> list[_Relative]:
    """What an op makes."""
    if kind == OpKind.F:
        return [_Relative(SAVED), *([_Relative(ACT)] if s < len(stages) - 1 else [])]
    values = [_Relative(GRAD, -1)] if kind in (OpKind.B, OpKind.BW) and s > 0 else []
    if kind == OpKind.B:
        values.append(_Relative(SAVED_W))
    elif kind in (OpKind.W, OpKind.BW):
        values.append(_Relative(WGRAD))
    return values


def _needed(kind: OpKind, until: OpKind) -> bool:
    """Whether an op of this kind still needs a value that is held until op `until`."""
    if kind == OpKind.W:
        return until == OpKind.W
    return kind == OpKind.F or until != OpKind.F


class Pairs(NamedTuple):
    """Ops and values that belong together: node `node[i]` touches value `value[i]`, by node."""

    node: IntArray
    value: IntArray


@dataclass(frozen=True, eq=False)
class Touches:
    """For each class of op the values that it touches, as distances from its cell.

    Class c has `count[c]` of them, which stand in `distance` from `first[c]` on.
    """

    first: IntArray
    count: IntArray
    distance: IntArray

    def pairs(self, classes: IntArray, cells: IntArray) -> Pairs:
        """Every op with every value that it touches."""
        counts = self.count[classes]
        ends = counts.cumsum()
        node = np.repeat(np.arange(len(classes)), counts)
        entry = np.arange(len(node)) + (self.first[classes] - ends + counts)[node]
        return Pairs(node, self.distance[entry] + cells[node])


@dataclass(frozen=True, eq=False)
class EffectTable:
    """`Effects` and costs in numbers, by class of op and number of value.

    A value's number is its kind's, in the order of `VALUE_KINDS`, times the number of cells, plus
    its cell; `value_bytes` is by that number divided by the number of micro-batches.
    """

    num_cells: int
    reads: Touches
    makes: Touches
    duration_us: IntArray
    rise_bytes: IntArray
    made_bytes: IntArray
    value_bytes: IntArray

    @staticmethod
    def of(costs: Costs, num_replicas: int, num_micro_batches: int) -> "EffectTable":
        """The table for stages with so many copies.

        Raises:
            SynthError: a cost is too large to be added up exactly.
        """
        return _effect_table(costs.table(), num_replicas, num_micro_batches)


@lru_cache(maxsize=32)  # a search evaluates thousands of orders on the same costs
def _effect_table(table: CostTable, num_replicas: int, num_micro_batches: int) -> EffectTable:
    num_stages = len(table.stages)
    num_cells = num_replicas * num_stages * num_micro_batches
    nothing = np.zeros(num_stages, dtype=np.int64)
    sizes = np.array(
        [table.output_bytes, table.output_bytes, table.saved_bytes, table.saved_w_bytes, nothing]
    )
    reads = _touches(table, _reads, num_cells, num_micro_batches)
    _add_reads_of_step(reads, num_cells, num_stages, num_micro_batches)
    makes = _touches(table, _makes, num_cells, num_micro_batches)
    return EffectTable(
        num_cells,
        Touches(*map(np.array, reads)),
        Touches(*map(np.array, makes)),
        table.duration_us.ravel(),
        table.rise_bytes.ravel(),
        _made_bytes(table, sizes),
        np.repeat(sizes, num_replicas, axis=0).ravel(),
    )


class _Lists(NamedTuple):
    """The fields of `Touches` while they grow."""

    firsts: list[int]
    counts: list[int]
    distances: list[int]


def _touches(table: CostTable, rule: _Rule, num_cells: int, num_micro_batches: int) -> _Lists:
    lists = _Lists([], [], [])
    for kind in OpKind:
        for stage in range(len(table.stages)):
            touched = rule(table.stages, kind, stage)
            lists.firsts.append(len(lists.distances))
            lists.counts.append(len(touched))
            lists.distances.extend(
                _VALUE_CODES[value] * num_cells + offset * num_micro_batches
                for value, offset in touched
            )
    return lists


def _add_reads_of_step(
    lists: _Lists, num_cells: int, num_stages: int, num_micro_batches: int
) -> None:
    """STEP, whose cell is that of micro-batch 0, reads the WGRAD of every micro-batch."""
    step = KIND_CODES[OpKind.STEP] * num_stages
    lists.firsts[step : step + num_stages] = [len(lists.distances)] * num_stages
    lists.counts[step : step + num_stages] = [num_micro_batches] * num_stages
    wgrad = _VALUE_CODES[WGRAD] * num_cells
    lists.distances.extend(range(wgrad, wgrad + num_micro_batches))


def _made_bytes(table: CostTable, sizes: IntArray) -> IntArray:
    """The bytes that an op of each class leaves on its rank."""
    return np.array(
        [
            sum(
                int(sizes[_VALUE_CODES[value], stage + offset])
                for value, offset in _makes(table.stages, kind, stage)
            )
            for kind in OpKind
            for stage in range(len(table.stages))
        ]
    )
