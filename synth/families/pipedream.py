"""PipeDream: 1F1B without a flush, with an update after every micro-batch.

Narayanan et al. 2019, "PipeDream: Generalized Pipeline Parallelism for DNN Training", SOSP 2019,
sections 3.2 and 3.3. With weight stashing, the default, the backward of a micro-batch reads the
weights that its forward read: stage s of n holds n − s versions, and its gradients are n − 1 − s
updates old. With `vertical` (vertical sync) all stages read the version that the first one read, so
each holds n versions and all gradients are n − 1 updates old.

With `2-1` the first stage is on two ranks and the second on one (1F1B-RR): the ranks of a stage
take micro-batches in turn, forward and backward of each on the same rank. An update takes one
micro-batch of each of them. A rank of the first stage admits NOAM micro-batches before it runs a
backward: the number of ranks over those of the first stage, rounded up. At updates the ranks of a
stage wait for each other, so that with more than two stages, or more ranks behind, the pipeline may
not stay full. With `full` each stage admits as many as keep it full.
"""

from synth.families._lib.buffering_choice import patient
from synth.families._lib.family import Family, Programs, Setting
from synth.families._lib.options import REPLICAS, ChoiceOption
from synth.families._lib.updates import (
    admitted,
    admitted_to_stay_full,
    in_turn,
    one_forward_one_backward,
    with_updates,
)
from synth.schedule.weight_versions import BackwardReads, ForwardReads, WeightVersions

_SYNC = ChoiceOption("consistency", ("stashing", "vertical"))
_ADMITTED = ChoiceOption("admitted", ("noam", "full"), untried=("full",))


def make(setting: Setting) -> Programs:
    """Stage s keeps n − s micro-batches in flight, as in 1F1B, if it is on one rank."""
    in_turn(setting)
    where = setting.placement
    stays_full = setting.options[_ADMITTED.name] == "full"
    counts = admitted_to_stay_full(where) if stays_full else admitted(where)
    return with_updates(one_forward_one_backward(setting, counts), 1, where)


def versions(setting: Setting) -> WeightVersions:
    """Vertical sync changes the versions that are read, not the order."""
    is_vertical = setting.options[_SYNC.name] == "vertical"
    forward = ForwardReads.VERTICAL if is_vertical else ForwardReads.NEWEST
    return WeightVersions(1, forward, BackwardReads.STASHED)


FAMILY = Family(
    "pipedream",
    "Narayanan et al. 2019, SOSP, sections 3.2 and 3.3; arXiv 1806.03377",
    make,
    f"{{{REPLICAS.name}}}",
    options=(REPLICAS, _SYNC, _ADMITTED),
    buffering=patient,
    versions=versions,
)
