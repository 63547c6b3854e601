"""Constants of the search for offloads."""

from dataclasses import dataclass


@dataclass(frozen=True)
class OffloadTuning:
    """Offloads of given orders, and the search for orders."""

    # Ops between a send and the wait for it, besides those of the order: a move takes several ops.
    sends_behind: tuple[int, ...] = (2, 4, 8, 14)
    # Where offloads free too little, ops are delayed by this part of the longest move, at most this
    # many times for each micro-batch.
    delays_of_move: int = 4
    delays_of_each: int = 16
    # Times that offloads are chosen again, by the clock of the plan that has them.
    rounds: int = 2
    # Factors of the shares away with which orders are searched, and the largest share.
    factors: tuple[float, ...] = (0.25, 0.5, 1.0, 1.5, 4.0)
    most_away: float = 0.9
    # Ops of published schedules that offload that are judged in any case.
    first_ops: int = 50_000
    # Shares of the remaining time: for published schedules that offload; for their best cuts, and
    # the same as long as none fits; for the offloads of published orders there; for annealing of
    # these; for the search without offloads, the same as long as plans with them are beyond a
    # multiple of the bound, and where bounds show that it cannot win; for that without limits; and
    # for orders. Annealing has the rest.
    judging_share: float = 0.2
    cuts_share: float = 0.15
    first_cuts_share: float = 0.4
    early_share: float = 0.15
    early_rung_share: float = 0.2
    without_share: float = 0.35
    far_factor: float = 1.8
    without_good_plan_share: float = 0.7
    hopeless_share: float = 0.05
    unlimited_share: float = 0.12
    orders_share: float = 0.2
    # Share of the remaining time in which the search without offloads goes on if it leads.
    going_on_share: float = 0.5
    # Multiple of the best value above which a plan is not worth more time.
    near_factor: float = 1.15
    # The same as a multiple of an order's value without limits, before any search.
    near_order_factor: float = 1.5
    # Placements and partitions whose orders are searched, and plans that annealing begins from.
    few_problems: int = 3
    few_plans: int = 3
    # Effort of a search that counts instead of looking at the clock: ops evaluated in a second, and
    # evaluations that count for a choice of offloads.
    ops_per_s: int = 250_000
    choice_counts_as: int = 40
    # Annealing: effort in a second (see `AnnealingTuning.units_per_s`); the share of the time in
    # which several plans compete; its rounds there, and those of the best plan (see `long_rounds`).
    units_per_s: int = 10_000_000
    rung_share: float = 0.4
    rung_rounds: tuple[tuple[float, float], ...] = ((1.0, 0.03),)
    long_rounds: tuple[tuple[float, float], ...] = ((0.5, 0.03), (1.0, 0.06))


OFFLOAD = OffloadTuning()
