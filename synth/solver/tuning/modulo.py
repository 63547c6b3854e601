"""Numeric constants of modulo scheduling."""

from dataclasses import dataclass


@dataclass(frozen=True)
class SteadyStateTuning:
    """Modulo schedules of one micro-batch per interval, in coarse ticks."""

    # Exact ticks are used up to this many per interval.
    most_exact_ticks: int = 400
    # Ticks per largest work: in microseconds the search stalls, with fewer unequal stages look
    # alike.
    ticks: int = 36


@dataclass(frozen=True)
class IntervalSearchTuning:
    """Search for the shortest initiation interval of several micro-batches.

    A *step* is the next interval to try, as a share of the way from the longest interval not found
    to the shortest found. Seconds are effort as `cpsat.run.decide` counts it.
    """

    # The search ends when the open gap is this share of the interval.
    precision: float = 0.001
    # Largest share of the effort for one interval, before and after one is found.
    share_before_found: float = 0.6
    share_after_found: float = 0.35
    # Undecided intervals in a row after which a size is given up; and the same just below the
    # shortest found.
    most_undecided: int = 2
    most_undecided_below: int = 3
    # Effort per pair of ops: expected, the most for a brief try, and expected for a thorough one.
    s_per_pair: float = 9e-6
    most_s_per_pair: float = 1.5e-5
    thorough_s_per_pair: float = 3.5e-5
    # Expected effort of a thorough try per op, which is less for many ops.
    thorough_s_per_op: float = 0.015
    # Factor on the expected effort that one thorough try may take.
    thorough_factor: float = 1.15
    # Steps: at first and after a refuted interval until one is found; after a refuted one later; at
    # first in thorough tries; after an undecided one; less by this after each found, down to the
    # least.
    first_step: float = 0.25
    later_step: float = 0.5
    first_thorough_step: float = 0.65
    step_after_undecided: float = 0.6
    step_decrease: float = 0.2
    least_step: float = 0.3
    # Until one is found: largest factor from one interval to the next, since far too long intervals
    # leave too many schedules; and the largest rise after an undecided one, since the transition
    # from refuted to found is sharp.
    most_rise: float = 1.25
    rise_after_undecided: float = 0.02


@dataclass(frozen=True)
class SeveralMicroBatchesTuning:
    """Modulo scheduling of several micro-batches per interval."""

    # Micro-batches per interval, in this order, after as many as fill the memory.
    sizes: tuple[int, ...] = (4, 2, 6, 3, 8)
    # Largest model.
    most_ops: int = 800
    # Least share of the remaining effort for one size.
    least_share: float = 0.7


@dataclass(frozen=True)
class BuildingBlockTuning:
    """Building blocks on ranks that hold several stages."""

    # Share of the time limit for each micro-batch of the problem, and the most.
    share_per_micro_batch: float = 0.004
    most_share: float = 0.3
    # The most where there is no time for annealing.
    most_share_of_large: float = 0.7
    # Micro-batches of each replica in a block, in this order.
    sizes: tuple[int, ...] = (1, 2)
    # Largest block, in ops.
    most_ops: int = 400
    # Moves for one interval, for each pair of ops of the block, and multiples of that, one after
    # the other, once no shorter interval is found.
    moves_per_pair: int = 20
    efforts: tuple[int, ...] = (1, 4, 16)
    # Seconds of a move for each pair of an op of the block and one of the largest rank, and those
    # between two looks at the clock.
    s_per_pair: float = 1.3e-8
    look_s: float = 0.005
    # Multiples of the longest interval of use at which a first block is looked for.
    first_stretches: tuple[float, ...] = (1.2, 1.6)
    # Steps, as shares of the shortest interval: the first, the longest, and the last that is tried.
    first_step: float = 0.02
    most_step: float = 0.3
    least_step: float = 0.004
    # First and last temperature, as shares of a rank's memory: from the block at a longer interval,
    # and from one in which nothing waits. The same as shares of an interval.
    temperatures: tuple[tuple[float, float], ...] = ((0.03, 0.0005), (0.1, 0.002))
    temperatures_of_compaction: tuple[float, float] = (0.1, 0.001)


@dataclass(frozen=True)
class ModuloTuning:
    """Shares of the time limit for modulo scheduling, and the unrolling."""

    # Share per micro-batch of the problem, and the most.
    share_per_micro_batch: float = 0.004
    most_share: float = 0.45
    # After a short instance: share for both together, and the least for this.
    share_with_short_instance: float = 0.35
    least_share: float = 0.08
    # Relative gain after a short instance that is of use: windows get farther from its schedules.
    least_gain: float = 0.01
    # Micro-batches of an interval from which the unrolling begins, at most.
    most_unrollings: int = 8


@dataclass(frozen=True)
class FlushFreeTuning:
    """Modulo models of schedules without a flush."""

    # Ticks of an interval, at least: times closer than one of them are not told apart.
    ticks_per_interval: int = 100_000
    # CP-SAT's deterministic seconds for one interval, and for beginning ops sooner at the best one.
    decide_s: float = 20.0
    compact_s: float = 2.0
    # Micro-batches in flight beyond latency / interval for which 2BW's batch has room by default.
    more_in_flight: int = 2
    # Share of the remaining time for orders of several micro-batches, and the micro-batches of
    # their interval from which the unrolling begins, at most.
    several_share: float = 0.9
    most_rotations: int = 8
    # Micro-batches that may wait for their W under a policy of list scheduling: many where a burst
    # of W's, and so of updates, leaves the memory of versions to activations for the rest.
    most_waiting: tuple[int, ...] = (1, 1, 2, 3, 5, 8)
    # Share of the orders with vertical sync that count on all versions that may be read.
    cautious_share: float = 0.5
    # Share of the remaining time for list scheduling before that, the policies that are tried at
    # least, the ops of all, its effort in a deterministic search, in seconds per op, and the best
    # orders that are simulated exactly: that fit, and in all.
    list_share: float = 0.8
    fewest_policies: int = 40
    policy_ops: int = 600_000
    list_s_per_op: float = 10e-6
    # Share of the policies of a rank by which it waits for an op that it prefers.
    patient_share: float = 0.5
    most_list_orders: int = 8
    most_list_orders_refused: int = 150
    # Of the bound by the states of a stage: states, passes of Bellman and Ford, those after which a
    # cycle is looked for, and cycles.
    most_states: int = 10_000
    most_passes: int = 2_000
    passes_before_cycle: int = 8
    most_cycles: int = 60


STEADY_STATE = SteadyStateTuning()
INTERVAL_SEARCH = IntervalSearchTuning()
BUILDING_BLOCKS = BuildingBlockTuning()
SEVERAL_MICRO_BATCHES = SeveralMicroBatchesTuning()
MODULO = ModuloTuning()
FLUSH_FREE = FlushFreeTuning()
