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
    # Shares of the remaining time: for the search without offloads, for that without limits, and
    # for orders; local search has the rest.
    without_share: float = 0.35
    unlimited_share: float = 0.12
    orders_share: float = 0.5
    # Placements and partitions whose orders are searched, and plans that local search begins from.
    few_problems: int = 3
    few_plans: int = 2
    # Effort of a search that counts instead of looking at the clock: ops evaluated in a second, and
    # evaluations that count for a choice of offloads.
    ops_per_s: int = 250_000
    choice_counts_as: int = 40
    # Annealing: temperatures in mean times of an op, and the share of steps at critical ops.
    hottest_ops: float = 0.3
    coldest_ops: float = 0.005
    critical_share: float = 0.7
    # Annealing: the share of steps that change the buffering.
    buffering_share: float = 0.03
    # Annealing: the share of steps at O, L or F that remove or add a move; the fewest ops between O
    # and L of a new one; and the most ops between L and B.
    renewal_share: float = 0.2
    fewest_away: int = 2
    most_ahead: int = 6


OFFLOAD = OffloadTuning()
