"""BitPipe's models on its cluster: the time of a step of each approach, by (W, D, B).

The models are estimated on A800s (NVLink within nodes of 8, 200 Gb/s InfiniBand per GPU between
them), trained by Megatron-LM with separate attention kernels, without recomputation or sharding.

W pipelines of D ranks train micro-batches of B sequences. One-way approaches have the W ranks of a
stage beside each other, as Megatron-LM places them, and add up gradients after the iteration.
Two-way ones have ranks r and D − 1 − r, which hold the same stages, and their W copies in one node,
as far as they fit (BitPipe, figure 6), and begin to add up a stage's gradients after its last
backward. A ring over 2W ranks takes (2W − 1)/W times as long as one over 2, which is simulated; so
the link of the pair is slower by that factor.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import product
from pathlib import Path
from typing import NamedTuple

from synth.costs.costs import Costs
from synth.costs.partition_costs import partition_costs
from synth.errors import SynthError
from synth.estimates.calibration import factors_of
from synth.estimates.device import device_of
from synth.estimates.estimated_profile import Estimator
from synth.estimates.factors import software_of
from synth.estimates.layout import Layout, Sharding
from synth.estimates.model_config import model_of
from synth.estimates.training_step import TrainingStep
from synth.families import family_placement, generate
from synth.profile import Profile
from synth.profile.links import Links, PairLink
from synth.schedule.rank_memory import peak_bytes
from synth.schedule.verify import verify

MEMORY_BYTES = 80 * 10**9
_MODELS = Path(__file__).parents[1] / "models"
_PROGRAM = "megatron-2021"

# Tokens of a sequence, sequences of a mini-batch for each GPU, and tried sizes of micro-batches.
MODELS = {"BERT-64": (512, 4, (1, 2, 4, 8)), "GPT-96": (1024, 1, (1, 2))}


class Layouts(NamedTuple):
    """A point of the paper's search: pipelines, ranks of each, sequences of a micro-batch."""

    pipelines: int
    ranks: int
    sequences: int


class Step(NamedTuple):
    """A step: its time, sequences per second, and the peak of each rank."""

    layout: Layouts
    time_us: float
    samples_per_s: float
    peaks_bytes: tuple[int, ...]

    @property
    def fits(self) -> bool:
        """True if the peaks are within 80 GB."""
        return max(self.peaks_bytes) <= MEMORY_BYTES


@cache
def estimator_of(model: str, sequences: int, pipelines: int) -> Estimator:
    """Return the estimator of one of the two models."""
    device = device_of("a800")
    layout = Layout(
        seq_len=MODELS[model][0],
        micro_batch_size=sequences,
        data=pipelines,
        sharding=Sharding.NONE,
    )
    shape = model_of(str(_MODELS / f"{model.lower()}.json"))
    factors = factors_of(None, device, _PROGRAM)
    return Estimator(shape, device, layout, software_of(_PROGRAM), factors)


@cache
def profile_of(model: str, sequences: int, pipelines: int) -> Profile:
    """Return its estimated profile."""
    return estimator_of(model, sequences, pipelines).profile()


def links(layout: Layouts, is_two_way: bool) -> Links:
    """Return the links of a pipeline, from the places of its ranks in nodes of 8."""
    device = device_of("a800")
    profile = profile_of("BERT-64", 1, 1)
    fast = profile.links.default
    count = layout.ranks
    if is_two_way:
        pairs_in_node = max(1, device.ranks_per_node // (2 * layout.pipelines))
        node = [min(rank, count - 1 - rank) // pairs_in_node for rank in range(count)]
    else:
        in_node = max(1, device.ranks_per_node // layout.pipelines)
        node = [rank // in_node for rank in range(count)]
    slow = fast.replace(bandwidth_bytes_per_s=device.nic_bytes_per_s, latency_us=10.0)
    pairs = [
        PairLink(
            source=a,
            target=b,
            latency_us=fast.latency_us,
            bandwidth_bytes_per_s=_bandwidth(fast.bandwidth_bytes_per_s, a + b == count - 1, layout)
            if is_two_way
            else fast.bandwidth_bytes_per_s,
        )
        for a in range(count)
        for b in range(count)
        if a != b and node[a] == node[b]
    ]
    return Links(default=slow, pairs=tuple(pairs))


def _bandwidth(rate: float | None, is_pair: bool, layout: Layouts) -> float | None:
    """Return the rate of a link, of a pair's divided by the longer ring's share."""
    assert rate is not None
    more = (2 * layout.pipelines - 1) / layout.pipelines
    return rate / more if is_pair else rate


def step(model: str, family: str, layout: Layouts, micro_batches: int) -> Step:
    """Simulate a step.

    Raises:
        SynthError: the family does not admit the sizes.
    """
    estimator = estimator_of(model, layout.sequences, layout.pipelines)
    placement = family_placement(family, layout.ranks)
    is_two_way = len(placement.ranks) > 1
    profile = profile_of(model, layout.sequences, layout.pipelines)
    costs = costs_of(model, family, layout)
    schedule = generate(family, layout.ranks, micro_batches, costs=costs)
    lowered, line = verify(schedule, costs)
    whole = TrainingStep(estimator, layout.ranks, micro_batches, family)
    time_us = line.makespan_us + whole.outside(profile).step_us
    if not is_two_way:
        time_us += whole.outside(profile).data_us
    samples = layout.pipelines * layout.sequences * micro_batches
    return Step(layout, time_us, samples / time_us * 1e6, peak_bytes(lowered))


def costs_of(model: str, family: str, layout: Layouts) -> Costs:
    """Return the costs of the stages on the cluster.

    Raises:
        SynthError: there are more stages than layers.
    """
    estimator = estimator_of(model, layout.sequences, layout.pipelines)
    profile = profile_of(model, layout.sequences, layout.pipelines)
    is_two_way = len(family_placement(family, layout.ranks).ranks) > 1
    placed = profile.replace(links=links(layout, is_two_way))
    sizes = TrainingStep(estimator, layout.ranks, 1, family).stage_sizes(len(profile.layers))
    return partition_costs(placed, sizes)


def searched(
    model: str, family: str, gpus: int, is_default: bool, ranks: Sequence[int] = (4, 8, 16, 32)
) -> Iterator[Step]:
    """Yield the steps of the search space that fit in memory, all with the same mini-batch.

    Args:
        model: one of `MODELS`.
        family: the approach.
        gpus: W times D.
        is_default: only layouts with N = D micro-batches, the paper's default.
        ranks: the tried D.
    """
    _, each, sizes = MODELS[model]
    for count, sequences in product(ranks, sizes):
        pipelines = gpus // count
        micro_batches = each * gpus // (pipelines * sequences) if pipelines else 0
        if not micro_batches or (is_default and micro_batches != count):
            continue
        try:
            found = step(model, family, Layouts(pipelines, count, sequences), micro_batches)
        except SynthError:
            continue
        if found.fits:
            yield found
