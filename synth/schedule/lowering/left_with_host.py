"""Values of forwards that wait in the host's memory for the backwards of another rank.

    F            its rank   makes act or replay   the copy to the host starts
    R, B, BW, W  another    reads it              the copy from the host starts `receive_ahead` ops
                                                  before it

Only where backwards have ranks of their own (`Placement.backward_ranks`) does a backward read what
a forward of another rank made. It does so a whole pipeline later, so that a transfer between the
two ranks would keep its sender waiting, or its bytes on one of them. A value whose reader is on the
rank of its maker stays there.
"""

import numpy as np

from synth.costs.costs import HOST
from synth.op_kinds import OpKind
from synth.schedule.arrays import KIND_CODES, OpArrays
from synth.schedule.lowering import positions
from synth.schedule.lowering.required_transfers import RequiredTransfers


def left_with_host(arrays: OpArrays, required: RequiredTransfers) -> RequiredTransfers:
    """Replace each transfer from a forward to a backward by copies to the host and from it.

    Args:
        required: the transfers of values that one rank makes and another one reads.
    """
    is_forward = arrays.kind == KIND_CODES[OpKind.F]
    waits = is_forward[required.made] & ~is_forward[required.read]
    if arrays.schedule.placement.backward_ranks is None or not waits.any():
        return required
    direct, found = (
        RequiredTransfers(*(field[chosen] for field in required)) for chosen in (~waits, waits)
    )
    # Backwards of several ranks may read a value, which is copied to the host once.
    _, once = np.unique(found.value, return_index=True)
    source, host = found.source[once], np.full(len(waits), HOST)
    ahead = arrays.schedule.buffering.receive_ahead
    place = positions.ahead(arrays, found.read, found.target, ahead)
    asked = place + np.array(arrays.first_node)[found.target]
    copies = RequiredTransfers(
        value=np.concatenate([found.value[once], found.value]),
        source=np.concatenate([source, host[: len(found.value)]]),
        target=np.concatenate([host[: len(once)], found.target]),
        made=np.concatenate([found.made[once], asked]),
        read=np.concatenate([np.full(len(once), -1), found.read]),
        seen=np.concatenate([2 * source, 2 * found.target + 1]),
    )
    return direct.joined(copies)
