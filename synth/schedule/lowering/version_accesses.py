"""The versions of weights that ops read, and the accesses that follow from them.

    F, B, BW, R   read the version that the plan's rule names; they read weights(s, v) if a STEP
                  has replaced it before
    STEP(s, v)    reads wgrad(s, j) of its batch, and makes weights(s, v) if an op reads version v
                  later

Versions of a stage depend on the order of its rank's program alone, except for vertical sync, which
reads the number of the version from the program of the first stage.
"""

from dataclasses import dataclass

import numpy as np

from synth.costs.costs import IntArray
from synth.op_kinds import OpKind
from synth.schedule.arrays import OpArrays
from synth.schedule.lowering.effect_table import Pairs
from synth.schedule.lowering.effects import VALUE_CODES, WEIGHTS, WGRAD
from synth.schedule.weight_versions import BackwardReads, ForwardReads, WeightVersions

NONE = -1


@dataclass(frozen=True, eq=False)
class VersionAccesses:
    """The versions that ops read, by node, and the accesses of the values behind them.

    Attributes:
        rule: the plan's.
        reads: ops with the stashed versions, and STEPs with the gradients, that they read.
        makes: STEPs with the versions that they stash.
        version: by node the version that the op reads; −1 for ops that read no weights. A STEP has
            the version that it replaces.
        newest: by node the newest version of the op's stage when it starts.
    """

    rule: WeightVersions
    reads: Pairs
    makes: Pairs
    version: IntArray
    newest: IntArray


def find_versions(arrays: OpArrays, rule: WeightVersions) -> VersionAccesses:
    """Find the versions that all ops read, and the STEPs that must stash one."""
    newest = _steps_before(arrays)
    version = _versions(arrays, rule, newest)
    stash = _value(arrays, VALUE_CODES[WEIGHTS], arrays.holders, version)
    stale = (~arrays.of_step & (version != NONE) & (version < newest)).nonzero()[0]
    of_gradients = _gradients_of_steps(arrays)
    node = np.concatenate([stale, of_gradients.node])
    value = np.concatenate([stash[stale], of_gradients.value])
    order = node.argsort(kind="stable")
    step = arrays.of_step.nonzero()[0]
    stashing = step[np.isin(stash[step], stash[stale])]
    return VersionAccesses(
        rule, Pairs(node[order], value[order]), Pairs(stashing, stash[stashing]), version, newest
    )


def _value(arrays: OpArrays, kind_code: int, copy: IntArray, number: IntArray) -> IntArray:
    """The number of a value; see `EffectTable`."""
    cell = copy * arrays.schedule.num_micro_batches + number
    found: IntArray = kind_code * arrays.num_cells + cell
    return found


def _steps_before(arrays: OpArrays) -> IntArray:
    """For each op the number of STEPs of its stage that stand before it on its rank."""
    holder = arrays.holders
    # The nodes of a holder stand on one rank, so their order is that of its program.
    order = holder.argsort(kind="stable")
    is_step = arrays.of_step[order].astype(np.int64)
    before = is_step.cumsum() - is_step
    sorted_holder = holder[order]
    first = np.searchsorted(sorted_holder, sorted_holder)
    found = np.empty_like(before)
    found[order] = before - before[first]
    return found


def _versions(arrays: OpArrays, rule: WeightVersions, newest: IntArray) -> IntArray:
    version = np.where(arrays.of_step, arrays.microbatch, NONE)
    forward = arrays.of_kinds(OpKind.F)
    match rule.forward:
        case ForwardReads.NEWEST:
            read = newest
        case ForwardReads.VERTICAL:
            entry = (forward & (arrays.stage == 0)).nonzero()[0]
            by_microbatch = np.zeros(arrays.schedule.num_micro_batches, dtype=np.int64)
            by_microbatch[arrays.microbatch[entry]] = newest[entry]
            read = by_microbatch[arrays.microbatch]
        case ForwardReads.PREVIOUS_BATCH:
            read = np.maximum(arrays.microbatch // arrays.update_size - 1, 0)
    version[forward] = read[forward]
    backward = arrays.of_kinds(OpKind.B, OpKind.BW, OpKind.R)
    read = newest
    if rule.backward == BackwardReads.STASHED:
        by_cell = np.zeros(arrays.num_cells, dtype=np.int64)
        by_cell[arrays.cells[forward]] = version[forward]
        read = by_cell[arrays.cells]
    version[backward] = read[backward]
    return version


def _gradients_of_steps(arrays: OpArrays) -> Pairs:
    """Every STEP with the wgrad of each micro-batch of its batch that its rank has run."""
    step = arrays.of_step.nonzero()[0]
    add = arrays.of_kinds(OpKind.W, OpKind.BW).nonzero()[0]
    batch = arrays.microbatch[add] // arrays.update_size[add]
    count = arrays.schedule.num_micro_batches
    of_step = arrays.holders[step] * count + arrays.microbatch[step]
    of_batch = arrays.holders[add] * count + batch
    order = of_step.argsort(kind="stable")
    place = np.searchsorted(of_step[order], of_batch)
    is_taken = np.append(of_step[order], NONE)[place] == of_batch
    taken = add[is_taken]
    value = _value(arrays, VALUE_CODES[WGRAD], arrays.copies[taken], arrays.microbatch[taken])
    return Pairs(step[order[place[is_taken]]], value)
