"""PipeDream: 1F1B without a flush, with an update after every micro-batch.

Narayanan et al. 2019, "PipeDream: Generalized Pipeline Parallelism for DNN Training", SOSP 2019,
section 3.3. With weight stashing, the default, the backward of a micro-batch reads the weights that
its forward read: stage s of n holds n − s versions, and its gradients are n − 1 − s updates old.
With `vertical` (vertical sync) all stages read the version that the first one read, so each holds n
versions and all gradients are n − 1 updates old.
"""

from synth.families._lib.buffering_choice import patient
from synth.families._lib.family import Family, Programs, Setting
from synth.families._lib.options import ChoiceOption
from synth.families._lib.updates import one_forward_one_backward, with_updates
from synth.schedule.weight_versions import BackwardReads, ForwardReads, WeightVersions

_SYNC = ChoiceOption("consistency", ("stashing", "vertical"))


def make(setting: Setting) -> Programs:
    """Stage s keeps n − s micro-batches in flight, as in 1F1B."""
    n = setting.num_ranks
    return with_updates(one_forward_one_backward(setting, range(n, 0, -1)), 1)


def versions(setting: Setting) -> WeightVersions:
    """Vertical sync changes the versions that are read, not the order."""
    is_vertical = setting.options[_SYNC.name] == "vertical"
    forward = ForwardReads.VERTICAL if is_vertical else ForwardReads.NEWEST
    return WeightVersions(1, forward, BackwardReads.STASHED)


FAMILY = Family(
    "pipedream",
    "Narayanan et al. 2019, SOSP, section 3.3; arXiv 1806.03377",
    make,
    options=(_SYNC,),
    buffering=patient,
    versions=versions,
)
