"""PipeDream-2BW: 1F1B without a flush, with two versions of the weights.

Narayanan et al. 2021, "Memory-Efficient Pipeline-Parallel DNN Training", arXiv 2006.09503, section
3.1. An update takes the mean gradient of k micro-batches. Those of a batch read the version before
the update of the batch before: W(t+1) = W(t) − ν ∇f(W(t−1)). The paper asks for k ≥ n on n ranks;
with 1F1B's order k = n − 1 is enough, since the first stage runs the batch's last backward before
the first forward that needs its update. `every` is k; by default the fewest from n on that divide
the micro-batches.

With `2` every stage is on two ranks: two data-parallel pipelines, which take micro-batches in turn
(the width of section 3.3). k then counts the micro-batches of each of them. With `recompute` a rank
holds its inputs, and the saved activations of one micro-batch.
"""

from dataclasses import replace

from synth.families._lib.buffering_choice import patient
from synth.families._lib.family import Family, Programs, Setting
from synth.families._lib.options import REPLICAS
from synth.families._lib.recompute_option import RECOMPUTE, recomputed
from synth.families._lib.updates import (
    EVERY,
    admitted,
    batch_size,
    one_forward_one_backward,
    with_updates,
)
from synth.schedule.weight_versions import BackwardReads, ForwardReads, WeightVersions


def make(setting: Setting) -> Programs:
    """Stage s keeps n − s micro-batches in flight, as in 1F1B."""
    every, where = batch_size(setting, setting.num_stages), setting.placement
    programs = with_updates(one_forward_one_backward(setting, admitted(where)), every, where)
    return recomputed(setting, programs)


def versions(setting: Setting) -> WeightVersions:
    """The version of the previous batch, for forwards and backwards."""
    every = batch_size(setting, setting.num_stages)
    return WeightVersions(every, ForwardReads.PREVIOUS_BATCH, BackwardReads.STASHED)


FAMILY = Family(
    "2bw",
    "Narayanan et al. 2021, arXiv 2006.09503, section 3.1",
    make,
    f"{{{REPLICAS.name}}}",
    options=(REPLICAS, replace(RECOMPUTE, untried=(RECOMPUTE.words[-1],)), EVERY),
    buffering=patient,
    versions=versions,
)
