"""PACI: 1F1B without a flush and without stashing, with an update every k micro-batches.

arXiv 2606.07881. Every stage has one version of its weights and updates it by itself. On n ranks
with k ≥ n − 1, at most one update stands between the forward of a micro-batch and its backward.
`every` is k; by default the fewest from n − 1 on that divide the micro-batches. `paci:every=1` is
1F1B with an update after every micro-batch and no stashing.
"""

from synth.families._lib.buffering_choice import patient
from synth.families._lib.family import Family, Programs, Setting
from synth.families._lib.updates import EVERY, batch_size, one_forward_one_backward, with_updates
from synth.schedule.weight_versions import BackwardReads, ForwardReads, WeightVersions


def make(setting: Setting) -> Programs:
    """Stage s keeps n − s micro-batches in flight, as in 1F1B."""
    n = setting.num_ranks
    every = batch_size(setting, n - 1)
    return with_updates(one_forward_one_backward(setting, range(n, 0, -1)), every)


def versions(setting: Setting) -> WeightVersions:
    """One version, read as it is."""
    every = batch_size(setting, setting.num_ranks - 1)
    return WeightVersions(every, ForwardReads.NEWEST, BackwardReads.NEWEST)


FAMILY = Family(
    "paci", "arXiv 2606.07881", make, options=(EVERY,), buffering=patient, versions=versions
)
