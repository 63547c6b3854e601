"""A plan with all its times, or all its bytes, multiplied: the same order on other costs."""

import math

from pydantic import ValidationError

from synth.costs.costs import HOST, Costs
from synth.costs.stage_costs import StageCosts
from synth.errors import SynthError
from synth.profile.links import Link, Links, NodeLink, PairLink
from synth.records.record import describe
from synth.schedule.files.claim import Claim
from synth.schedule.files.plan_file import Plan
from synth.schedule.lowering.lower import Lowered

# The largest factor, and the inverse of the smallest; no machine differs more from another.
_MOST = 1e9


def scaled(plan: Plan, *, times: float = 1.0, sizes: float = 1.0) -> Plan:
    """Multiply times and bytes; the claim is simulated anew, and memory limits are dropped.

    Links are scaled with both, so that a transfer takes `times` as long as it did.

    Raises:
        SynthError: a factor is not between a billionth and a billion, or a time gets too long.
    """
    for name, factor in (("times", times), ("sizes", sizes)):
        if not 1 / _MOST <= factor <= _MOST:  # a nan is neither
            raise SynthError(
                f"{name} are multiplied by {factor:g}; give a factor above 0, from {1 / _MOST:g} "
                f"to {_MOST:g}"
            )
    if times == sizes == 1.0:
        return plan
    try:
        costs = _scaled_costs(plan.costs, times, sizes)
    except ValidationError as error:
        raise SynthError(
            f"times multiplied by {times:g} and sizes by {sizes:g} are too large; give smaller "
            f"factors:\n{describe(error)}"
        ) from None
    claim = Claim.of(plan.schedule(), costs)
    return plan.replace(costs=costs, claim=claim, caps_bytes=None)


def moved_bytes(lowered: Lowered) -> int:
    """The bytes that all ranks together send to each other in one iteration.

    A ring all-reduce among n ranks sends 2 (n − 1) times its bytes.
    """
    sums = sum(one.sent_bytes for one in lowered.collectives)
    sent = (t.num_bytes for t in lowered.transfers if HOST not in (t.source, t.target))
    return sum(sent) + sums


def _scaled_costs(costs: Costs, times: float, sizes: float) -> Costs:
    links = costs.links
    return Costs(
        stages=tuple(_scaled_stage(stage, times, sizes) for stage in costs.stages),
        links=Links(
            default=Link(**_scaled_link(links.default, times, sizes)),
            nodes=tuple(
                NodeLink(ranks_per_node=node.ranks_per_node, **_scaled_link(node, times, sizes))
                for node in links.nodes
            ),
            pairs=tuple(
                PairLink(source=pair.source, target=pair.target, **_scaled_link(pair, times, sizes))
                for pair in links.pairs
            ),
            host=links.host and Link(**_scaled_link(links.host, times, sizes)),
        ),
        ties=tuple(
            tie.replace(
                static_bytes=round(tie.static_bytes * sizes),
                step_us=round(tie.step_us * times),
                reduce_us=round(tie.reduce_us * times),
            )
            for tie in costs.ties
        ),
    )


def _scaled_stage(stage: StageCosts, times: float, sizes: float) -> StageCosts:
    fields = {
        name: value
        for name, value in dict(stage).items()
        if name.endswith("_bytes") and value is not None  # then it follows from the others
    }
    bytes_of = {
        name: {kind: round(n * sizes) for kind, n in value.items()}
        if isinstance(value, dict)
        else round(value * sizes)
        for name, value in fields.items()
    }
    durations = {kind: round(us * times) for kind, us in stage.duration_us.items()}
    hidden_us = math.floor(stage.hidden_us * times)
    reduce_us = round(stage.reduce_us * times)
    return stage.replace(
        duration_us=durations, hidden_us=hidden_us, reduce_us=reduce_us, **bytes_of
    )


def _scaled_link(link: Link, times: float, sizes: float) -> dict[str, float | None]:
    """Latency and bandwidth."""
    bandwidth = link.bandwidth_bytes_per_s
    return {
        "latency_us": link.latency_us * times,
        "bandwidth_bytes_per_s": bandwidth and bandwidth * sizes / times,
    }
