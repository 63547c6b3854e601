"""Pipelined back-propagation with delayed updates (Chen et al. 2012, Interspeech).

"Pipelined Back-Propagation for Context-Dependent Deep Neural Networks". Every stage has one version
of its weights, and each forward and each backward reads the newest weights. In a tick a stage runs
one forward and one backward, so that stage s of n has 2 (n − 1 − s) + 1 micro-batches in flight. It
is updated 2 (n − 1 − s) times between the forward and the backward of a micro-batch.
"""

from synth.families._lib.buffering_choice import patient
from synth.families._lib.family import Family, Programs, Setting
from synth.families._lib.updates import one_forward_one_backward, with_updates
from synth.schedule.weight_versions import BackwardReads, ForwardReads, WeightVersions


def make(setting: Setting) -> Programs:
    """Stage s keeps 2 (n − 1 − s) + 1 micro-batches in flight, and updates after each."""
    last = setting.num_ranks - 1
    in_flight = [2 * (last - s) + 1 for s in range(setting.num_ranks)]
    return with_updates(one_forward_one_backward(setting, in_flight), 1)


def versions(setting: Setting) -> WeightVersions:
    """One version, read as it is."""
    return WeightVersions(1, ForwardReads.NEWEST, BackwardReads.NEWEST)


FAMILY = Family(
    "delayed-update", "Chen et al., Interspeech 2012", make, buffering=patient, versions=versions
)
