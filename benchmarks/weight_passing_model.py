"""The model and devices of the comparisons of weight passing, and their simulation.

A Llama-like model: per layer 12 H² parameters, and 24 H² + 2 S H flop per token forward, that again
for each of the two halves of the backward, and once more if the forward is recomputed. All systems
are simulated on the same costs and links, without any overhead of kernels or frameworks.
"""

from typing import NamedTuple

from synth.costs.costs import Costs
from synth.costs.stage_costs import StageCosts
from synth.families import family_placement, generate
from synth.op_kinds import OpKind
from synth.profile.links import Link, Links
from synth.schedule.lowering.lower import Lowered
from synth.schedule.model import Schedule
from synth.schedule.rank_memory import peak_bytes
from synth.schedule.verify import verify

# Achieved flop/s of a device (A100: 312e12 at most), its memory, and bytes per element sent.
FLOPS_PER_S = 1e14
MEMORY_BYTES = 80 * 10**9
BYTES = 2

# Bytes of a parameter at its home besides the one that is computed with: a gradient in the same
# precision, float32 weights and two moments.
_GRADIENT_BYTES, _OPTIMIZER_BYTES = 2, 12

# Bytes per token and hidden unit that a layer's recomputed forward holds until its backward ends
# (Korthikanti et al. 2022, arXiv 2205.05198, without attention scores).
_WORKING_BYTES = 34

LATENCY_US = 20
NETWORKS = {"10 GbE": 1.25e9, "200 Gb/s": 25e9, "NVLink": 200e9}


class Model(NamedTuple):
    """The sizes of a model and of its micro-batches; whether each layer's forward is recomputed."""

    hidden: int
    num_layers: int
    sequence: int
    tokens: int
    recomputes: bool = True


class Outcome(NamedTuple):
    """Tokens per second and device, peak memory, and bytes sent: over all links, between nodes."""

    tokens_per_s: float
    peak_bytes: int
    sent_bytes: int
    between_nodes_bytes: int


def costs_of(model: Model, num_stages: int, links: Links) -> Costs:
    """Equal stages of whole layers; F keeps the layers' inputs, or all if it is not repeated."""
    layers = model.num_layers // num_stages
    flop = (24 * model.hidden**2 + 2 * model.sequence * model.hidden) * model.tokens * layers
    forward_us = round(flop / FLOPS_PER_S * 1e6)
    boundary = model.tokens * model.hidden * BYTES
    working = model.tokens * model.hidden * _WORKING_BYTES
    parameters = 12 * model.hidden**2 * layers
    durations = {
        OpKind.F: forward_us,
        OpKind.B: (1 + model.recomputes) * forward_us,
        OpKind.W: forward_us,
        OpKind.BW: (2 + model.recomputes) * forward_us,
        OpKind.STEP: 0,
    }
    rises = dict.fromkeys(durations, working * model.recomputes) | {OpKind.STEP: 0}
    # B leaves for W what the layers' weight gradients need: their inputs and output gradients.
    left = working * layers
    stages = tuple(
        StageCosts(
            duration_us=durations,
            static_bytes=parameters * (BYTES + _GRADIENT_BYTES + _OPTIMIZER_BYTES),
            parameter_bytes=parameters * BYTES,
            gradient_bytes=parameters * _GRADIENT_BYTES,
            output_bytes=boundary if stage < num_stages - 1 else 0,
            saved_bytes=boundary * layers if model.recomputes else left,
            saved_w_bytes=left,
            rise_bytes=rises,
            input_until=OpKind.F,
        )
        for stage in range(num_stages)
    )
    return Costs(stages=stages, links=links)


def simulate(
    system: str,
    model: Model,
    num_ranks: int,
    rounds: int,
    links: Links,
    cap_bytes: int | None = None,
) -> Outcome:
    """One iteration of `rounds` micro-batches per device.

    Args:
        system: the name of a family.
        model: the sizes.
        num_ranks: the number of devices.
        rounds: micro-batches per device.
        links: the links.
        cap_bytes: the memory for which a family makes its schedule, if it can; None: no limit.

    Raises:
        SynthError: the family does not admit the numbers.
    """
    costs = costs_of(model, family_placement(system, num_ranks).num_stages, links)
    caps = None if cap_bytes is None else (cap_bytes,) * num_ranks
    schedule = generate(system, num_ranks, rounds * num_ranks, costs=costs, caps_bytes=caps)
    return outcome(schedule, costs, model, links)


def outcome(schedule: Schedule, costs: Costs, model: Model, links: Links) -> Outcome:
    """One iteration of a schedule."""
    lowered, timeline = verify(schedule, costs)
    num_ranks = schedule.placement.num_ranks
    tokens = model.tokens * schedule.num_micro_batches
    sent = int(lowered.transfer_table.num_bytes.sum())
    sent += sum(one.sent_bytes for one in lowered.collectives)
    seconds = timeline.makespan_us / 1e6
    slow = between_nodes(lowered, links.nodes[0].ranks_per_node) if links.nodes else 0
    return Outcome(tokens / seconds / num_ranks, max(peak_bytes(lowered)), sent, slow)


def between_nodes(lowered: Lowered, ranks_per_node: int) -> int:
    """The bytes that leave a node; in a ring collective each link carries as much."""
    table = lowered.transfer_table
    leaves = table.source // ranks_per_node != table.target // ranks_per_node
    sent = int(table.num_bytes[leaves].sum())
    for one in lowered.collectives:
        ring = zip(one.ranks, (*one.ranks[1:], one.ranks[0]), strict=True)
        slow = sum(a // ranks_per_node != b // ranks_per_node for a, b in ring)
        sent += slow * one.sent_bytes // len(one.ranks)
    return sent


def network(name: str) -> Links:
    """All ranks joined by one kind of link."""
    return Links(default=Link(latency_us=LATENCY_US, bandwidth_bytes_per_s=NETWORKS[name]))
