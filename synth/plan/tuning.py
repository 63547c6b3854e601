"""Numeric constants of partition searches, memory curves and rechecks, a frozen dataclass for each.

Limits of size and effort are here, and shares of time; nothing here changes what is correct, only
how long it takes and how good the answer is. Units are in the names: `_s` seconds, `_share` a part
of a whole from 0 to 1, `_ops` ops placed by list scheduling.
"""

from dataclasses import dataclass

# Partition


@dataclass(frozen=True)
class BalanceTuning:
    """The balanced partition."""

    # Layers up to which the exact passes with limits run to their end: they take about 2 ms per
    # layer, and the answer without limits may not fit although theirs does.
    few_layers: int = 100
    # Steps of halving to narrow down the limit on a band of runs of layers.
    halvings: int = 50
    # Layers up to which the works of all runs are a table, which takes quadratic memory.
    most_layers_in_table: int = 2_000


@dataclass(frozen=True)
class SeveralStagesTuning:
    """Local search over stage boundaries where ranks hold several stages."""

    # Random kicks in all, and kicks in a row without success that end the search.
    kicks: int = 60
    kicks_in_vain: int = 20
    # Exact memory evaluations in all, and those before a local optimum is accepted.
    memory_evaluations: int = 400
    tries_at_optimum: int = 12


@dataclass(frozen=True)
class TightCapTuning:
    """Search for partitions under tight memory limits, judged by list scheduling."""

    # Priority rules tried on each partition; twice as many if ranks hold several stages.
    rules: int = 12
    # The best rule so far comes first on a partition; the others are skipped if its value exceeds
    # this multiple of the best value.
    far: float = 1.15
    # Multiple of the best value up to which a partition is worth a trial of the solver.
    near: float = 1.05
    # Approximate speed of list scheduling, in ops placed per second.
    ops_per_s: int = 100_000
    # Ops up to which a partition is judged with all micro-batches, and the micro-batches per rank
    # with which it is judged otherwise.
    few_ops: int = 2_000
    micro_batches_per_rank: int = 3
    # Partitions of the least bounds that are tried before the neighbours.
    leaps: int = 4
    # Share of the remaining time for bounds, to find the next of those.
    leap_share: float = 0.3
    # Neighbours whose bounds are computed in one step; of more, a random sample.
    most_neighbours: int = 400
    # Effort of one bound, in ops per rank.
    bound_ops: int = 10


@dataclass(frozen=True)
class PartitionBoundTuning:
    """Bounds over all partitions."""

    # Runs of layers on all ranks above which there are no such bounds: a first one of each would
    # take seconds.
    most_runs: int = 200_000
    # Share of the time for the exact model of a rank at its first trial; each further trial may
    # take twice as long as the one before.
    first_share: float = 0.1
    # Approximate time of the closed forms of one run of layers.
    closed_form_s: float = 0.001


@dataclass(frozen=True)
class PartitionQueueTuning:
    """Choice of the next partition to try."""

    # Share of the time for the bounds by which one partition is chosen.
    share: float = 0.1
    # Time that choosing one counts in a deterministic search.
    choice_s: float = 0.01


# Memory curve


@dataclass(frozen=True)
class LeastCapTuning:
    """Bisection for the least memory limit that allows a target."""

    # Shares of the remaining time: for the problem without a limit, and for each limit tried.
    free_share: float = 0.25
    cap_share: float = 0.2
    # If a range of limits without open ones is narrower than the undecided range over this number,
    # open ones are searched again, with their share multiplied by the factor.
    ranges: int = 16
    more_time: float = 2.0
    # Shortest useful search: the published schedules alone take as long.
    shortest_s: float = 0.2
    # Sums of bytes above which the table of cap breakpoints is not worth its time.
    most_sums: int = 2_000_000


@dataclass(frozen=True)
class CurveTuning:
    """Search for the points of a memory curve."""

    # Ranges of limits narrower than this share of the whole are not searched.
    finest_share: float = 1 / 512
    # Interval at which results of the worker processes are collected.
    poll_s: float = 0.1


@dataclass(frozen=True)
class SteadyCapTuning:
    """The least memory limit without a bubble in the steady state."""

    # Share of the time limit for each of three steps: the proof, a pattern that fits, and the
    # pattern's shortest span.
    step_share: float = 0.2
    # Micro-batches per rank and copy over which the time of one more micro-batch is measured.
    micro_batches_per_rank: int = 8

    @property
    def share(self) -> float:
        """Share of the time limit for all three steps."""
        return 3 * self.step_share


# Proving again


@dataclass(frozen=True)
class ReproveTuning:
    """Proving the bounds of a plan again."""

    # Share of the time for the plan's own partition if all provers run; the rest is for all others.
    own_partition_share: float = 0.5


BALANCE = BalanceTuning()
SEVERAL_STAGES = SeveralStagesTuning()
TIGHT_CAPS = TightCapTuning()
PARTITION_BOUNDS = PartitionBoundTuning()
PARTITION_QUEUE = PartitionQueueTuning()
LEAST_CAP = LeastCapTuning()
CURVE = CurveTuning()
STEADY_CAP = SteadyCapTuning()
REPROVE = ReproveTuning()
