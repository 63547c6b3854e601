"""The meaning of ops as arrays: what each class of op reads and makes, for all ops at once."""

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from synth.costs.costs import CostTable, IntArray
from synth.op_kinds import MEASURED, OpKind
from synth.schedule.arrays import SAVED_MODES, SavedMode
from synth.schedule.lowering.effects import (
    VALUE_CODES,
    VALUE_KINDS,
    WGRAD,
    EffectRule,
    EffectSetting,
    makes_of,
    op_rise_bytes,
    own_value_bytes,
    reads_of,
    stage_bytes,
)
from synth.schedule.model import Placement

# The first value kinds, which suffice if saved activations are neither rebuilt nor moved.
_PLAIN_VALUES = 5


class Pairs(NamedTuple):
    """Accesses, ordered by node: node `node[i]` accesses value `value[i]`."""

    node: IntArray
    value: IntArray

    def joined(self, other: "Pairs") -> "Pairs":
        """Append accesses of other values."""
        return Pairs(*(np.concatenate(fields) for fields in zip(self, other, strict=True)))


@dataclass(frozen=True, eq=False)
class AccessTable:
    """The values that each class of op accesses, as distances from its cell.

    Class c has `count[c]` of them, which stand in `distance` from `first[c]` on.
    """

    first: IntArray
    count: IntArray
    distance: IntArray

    def pairs(self, classes: IntArray, cells: IntArray) -> Pairs:
        """Every op with every value that it accesses."""
        counts = self.count[classes]
        ends = counts.cumsum()
        node = np.repeat(np.arange(len(classes)), counts)
        entry = np.arange(len(node)) + (self.first[classes] - ends + counts)[node]
        return Pairs(node, self.distance[entry] + cells[node])


@dataclass(frozen=True, eq=False)
class EffectTable:
    """`Effects` and costs as arrays, by class of op and number of value.

    A value's number is the index of its kind in `VALUE_KINDS` times the number of cells, plus its
    cell. The index into `value_bytes`, and `own_bytes` on the rank that makes it, is that number
    divided by the number of micro-batches. If all ops are F, B, W, BW or STEP (`is_plain`),
    there are only their classes and values.
    """

    num_cells: int
    num_values: int
    reads: AccessTable
    makes: AccessTable
    duration_us: IntArray
    rise_bytes: IntArray
    made_bytes: IntArray
    value_bytes: IntArray
    own_bytes: IntArray


class _Class(NamedTuple):
    """The properties of an op on which its costs and effects depend."""

    saved_mode: SavedMode
    kind: OpKind
    stage: int


def _classes(num_stages: int, is_plain: bool) -> list[_Class]:
    """All classes, in the order of their numbers; see `synth.schedule.arrays`."""
    saved_modes, kinds = (SAVED_MODES[:1], MEASURED) if is_plain else (SAVED_MODES, tuple(OpKind))
    stages = range(num_stages)
    return [
        _Class(saved_mode, kind, s) for saved_mode in saved_modes for kind in kinds for s in stages
    ]


@lru_cache(maxsize=32)  # a search evaluates thousands of orders on the same costs
def effect_table(
    table: CostTable,
    placement: Placement,
    num_micro_batches: int,
    *,
    is_plain: bool,
    one_update: bool,
    barriers: int,
) -> EffectTable:
    """Make the table of the stages of a placement.

    If there is not `one_update`, it lacks the reads of STEPs. `barriers` are those of a divided
    vocabulary.
    """
    stages, num_stages, num_replicas = table.stages, len(table.stages), len(placement.ranks)
    num_cells = num_replicas * num_stages * num_micro_batches
    value_kinds = VALUE_KINDS[:_PLAIN_VALUES] if is_plain else VALUE_KINDS
    sizes = np.array([[stage_bytes(stage, kind) for stage in stages] for kind in value_kinds])
    # By kind of value, copy and stage.
    value_bytes = np.repeat(sizes, num_replicas, axis=0).ravel()
    own_bytes = value_bytes.copy()
    if is_plain and not barriers:
        for kind, of_copies in own_value_bytes(stages, placement).items():
            first = VALUE_CODES[kind] * len(of_copies)
            own_bytes[first : first + len(of_copies)] = of_copies
        if np.array_equal(own_bytes, value_bytes):
            own_bytes = value_bytes
    classes = _classes(num_stages, is_plain)
    reads, makes = _accesses(
        EffectSetting.of(stages, barriers),
        num_replicas,
        num_micro_batches,
        is_plain=is_plain,
        one_update=one_update,
    )
    return EffectTable(
        num_cells,
        len(value_kinds) * num_cells,
        reads,
        makes,
        np.array([stages[c.stage].duration_us[c.kind] for c in classes]),
        np.array([op_rise_bytes(stages[c.stage], c.kind, c.saved_mode) for c in classes]),
        _made_bytes(makes, own_bytes, num_stages, num_micro_batches),
        value_bytes,
        own_bytes,
    )


@lru_cache(maxsize=32)  # the same for all partitions of equal layers
def _accesses(
    setting: EffectSetting,
    num_replicas: int,
    num_micro_batches: int,
    *,
    is_plain: bool,
    one_update: bool,
) -> tuple[AccessTable, AccessTable]:
    """The values that each class of op reads, and those that it makes."""
    num_stages = setting.flow.num_stages
    num_cells = num_replicas * num_stages * num_micro_batches
    classes = _classes(num_stages, is_plain)
    reads = _access_lists(setting, classes, reads_of, num_cells, num_micro_batches)
    if one_update:
        _add_reads_of_step(reads, classes, num_cells, num_micro_batches)
    makes = _access_lists(setting, classes, makes_of, num_cells, num_micro_batches)
    return AccessTable(*map(np.array, reads)), AccessTable(*map(np.array, makes))


class _AccessLists(NamedTuple):
    """The fields of `AccessTable` while they grow."""

    firsts: list[int]
    counts: list[int]
    distances: list[int]


def _access_lists(
    setting: EffectSetting,
    classes: list[_Class],
    rule: EffectRule,
    num_cells: int,
    num_micro_batches: int,
) -> _AccessLists:
    lists = _AccessLists([], [], [])
    for saved_mode, kind, stage in classes:
        accessed = rule(setting, kind, stage, saved_mode)
        lists.firsts.append(len(lists.distances))
        lists.counts.append(len(accessed))
        lists.distances.extend(
            VALUE_CODES[value] * num_cells + offset * num_micro_batches
            for value, offset in accessed
        )
    return lists


def _add_reads_of_step(
    lists: _AccessLists, classes: list[_Class], num_cells: int, num_micro_batches: int
) -> None:
    """STEP, whose cell is that of micro-batch 0, reads the WGRAD of every micro-batch."""
    for number, (_, kind, _) in enumerate(classes):
        if kind == OpKind.STEP:
            lists.firsts[number] = len(lists.distances)
            lists.counts[number] = num_micro_batches
    wgrad = VALUE_CODES[WGRAD] * num_cells
    lists.distances.extend(range(wgrad, wgrad + num_micro_batches))


def _made_bytes(
    makes: AccessTable, own_bytes: IntArray, num_stages: int, num_micro_batches: int
) -> IntArray:
    """The bytes of the values that an op of each class makes."""
    made = np.zeros(len(makes.count), np.int64)
    of_class = np.repeat(np.arange(len(made)), makes.count)
    places = makes.distance // num_micro_batches + of_class % num_stages
    np.add.at(made, of_class, own_bytes[places])
    return made
