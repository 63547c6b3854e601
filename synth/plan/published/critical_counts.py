"""The ops on a critical path of a schedule, by which changes of a cut are estimated.

The time of a schedule is the length of the longest path through its ops and transfers. As long as
that path stays the longest, a µs more in a stage's op adds a µs for each time it is on the path. So
layers are to leave the stages of which many ops are critical:

    rank 0  F F F F . . . B B B B     stage 0: F × 4, B × 1
    rank 1    F B F B F B F B         stage 1: B × 1
"""

import numpy as np

from synth.costs.costs import IntArray
from synth.op_kinds import OpKind
from synth.schedule.arrays import KINDS
from synth.schedule.critical_path import critical_nodes
from synth.schedule.simulate import Timeline

# Kinds of op whose numbers are counted. BW counts as a B and a W.
COUNTED = (OpKind.F, OpKind.B, OpKind.W, OpKind.R)
_COUNTS_AS = {**{kind: (kind,) for kind in COUNTED}, OpKind.BW: (OpKind.B, OpKind.W)}


def critical_counts(line: Timeline) -> IntArray:
    """Count the ops on a path that ends with the last op, a row for each kind, by stage."""
    arrays = line.lowered.arrays
    counts = np.zeros((len(COUNTED), arrays.num_stages), np.int64)
    kinds, stages = arrays.kind.tolist(), arrays.stage.tolist()
    for node in critical_nodes(line):
        if node < arrays.num_nodes:
            for kind in _COUNTS_AS.get(KINDS[kinds[node]], ()):
                counts[COUNTED.index(kind), stages[node]] += 1
    return counts
