"""Costs as memory is counted where ranks keep a share of the state only."""

from synth.costs.costs import Costs
from synth.schedule.weight_flow import Sharded


def sharded_costs(costs: Costs, sharded: Sharded) -> Costs:
    """Return the costs as memory is counted; see `Costs.with_early_gradients`.

    With ZeRO-1 each rank keeps whole gradients, to which B adds those that it computes itself.
    """
    return costs if sharded is Sharded.OPTIMIZER else costs.with_early_gradients()
