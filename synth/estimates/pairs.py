"""The time of a layer's F and BW at once, of two micro-batches."""

from synth.estimates.collectives import collective_us
from synth.estimates.device import Device
from synth.estimates.factors import Factors
from synth.estimates.layer_ops import Work
from synth.estimates.ops import ExchangeKind, GroupExchange, Role
from synth.op_kinds import OpKind
from synth.profile.layer_profile import LayerProfile, Timing

# Share of the exchange of experts that is hidden while F and BW run at once: fitted to the only two
# published runs that differ in this alone (rows 200 and 201 of `published.csv`: 1663 and 1862
# tokens/s per GPU of Qwen3-235B-A22B on 256 H100).
EXCHANGE_HIDDEN = 0.33


def with_pair(
    layer: LayerProfile, work: Work, device: Device, factors: Factors, host_us: float
) -> LayerProfile:
    """Add the time of F and BW at once: each computes beside the other's exchange.

    Only the exchange of experts is hidden so (DeepSeek-AI 2024, arXiv 2412.19437, figure 4), and no
    more of it than there is to compute. The host launches the kernels of both in `host_us`.
    """
    forward_us, backward_us = (layer.time_us[op].median_us for op in (OpKind.F, OpKind.BW))
    to_hide = [
        factors.values[2]
        * sum(
            collective_us(device, call)
            for call in work.by_role[role]
            if isinstance(call, GroupExchange) and call.kind is ExchangeKind.ALL_TO_ALL
        )
        for role in (Role.F, Role.B)
    ]
    if not any(to_hide):
        return layer
    hidden_us = min(to_hide[0], max(0.0, backward_us - to_hide[1]))
    hidden_us += min(to_hide[1], max(0.0, forward_us - to_hide[0]))
    pair_us = forward_us + backward_us - EXCHANGE_HIDDEN * hidden_us
    pair_us = min(max(pair_us, host_us), forward_us + backward_us)
    return layer.replace(pair_us=Timing.exactly(round(pair_us, 3)))
