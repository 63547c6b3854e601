"""The durations of ops in a schedule: of pairs that run at once, and of STEPs that are shared."""

import numpy as np

from synth.costs.costs import Costs, IntArray
from synth.schedule.arrays import OpArrays
from synth.schedule.lowering.effect_table import EffectTable
from synth.schedule.weight_flow import WeightFlow


def durations_of_ops(arrays: OpArrays, table: EffectTable, costs: Costs) -> IntArray:
    """Return the microseconds of each op, by node."""
    op_us, flow = table.duration_us[arrays.classes], arrays.schedule.weights
    if len(arrays.overlapped):
        op_us = _overlapped_us(op_us, arrays, costs)
    if flow is not None:
        return _shared_steps_us(op_us, arrays, flow)
    return _tied_steps_us(op_us, arrays, costs) if costs.ties else op_us


def _overlapped_us(op_us: IntArray, arrays: OpArrays, costs: Costs) -> IntArray:
    """The durations of all ops, of which F and BW that run at once take turns.

    The time of such a pair is divided among both as their times one after the other. What both
    read is waited for before F, and what both make is there after BW.
    """
    found, forward = op_us.copy(), arrays.overlapped
    backward = forward + 1
    hidden_us = np.array([stage.hidden_us for stage in costs.stages])
    apart_us = op_us[forward] + op_us[backward]
    most_us = np.minimum(hidden_us[arrays.stage[forward]], hidden_us[arrays.stage[backward]])
    pair_us = np.maximum(apart_us - most_us, np.maximum(op_us[forward], op_us[backward]))
    found[forward] = pair_us * op_us[forward] // np.maximum(apart_us, 1)
    found[backward] = pair_us - found[forward]
    return found


def _shared_steps_us(op_us: IntArray, arrays: OpArrays, flow: WeightFlow) -> IntArray:
    """The durations of all ops, those of STEPs divided by the number of homes."""
    num_homes = np.array([len(homes) for homes in flow.homes])
    shared: IntArray = np.where(arrays.of_step, -(-op_us // num_homes[arrays.stage]), op_us)
    return shared


def _tied_steps_us(op_us: IntArray, arrays: OpArrays, costs: Costs) -> IntArray:
    """The durations of all ops; what several stages of a rank share is updated once."""
    found = op_us.copy()
    held = arrays.schedule.placement.held
    for node in arrays.of_step.nonzero()[0].tolist():
        stages = [stage for stage, _ in held[arrays.rank[node]]]
        found[node] = costs.step_us(int(arrays.stage[node]), stages)
    return found
