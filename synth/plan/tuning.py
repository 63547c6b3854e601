"""Numeric constants of the decisions around the solver, one frozen dataclass for each component.

Limits of size and effort are here, and shares of time; nothing here changes what is correct, only
how long it takes and how good the answer is. Units are in the names: `_s` seconds, `_share` a part
of a whole from 0 to 1, `_ops` F, B and W ops.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class ListJudgingTuning:
    """Judging partitions and choices of layers by list scheduling."""

    # Priority rules tried on each variant; twice as many on partitions if ranks hold several
    # stages.
    rules: int = 12
    # The best rule so far comes first on a variant; the others are skipped if its value exceeds
    # this multiple of the best value.
    far: float = 1.15
    # Multiple of the best value up to which a variant is worth a trial of the solver.
    near: float = 1.05
    # Approximate speed of list scheduling, in ops placed per second.
    ops_per_s: int = 100_000
    # Ops up to which a variant is judged with all micro-batches, and the micro-batches per rank
    # with which it is judged otherwise.
    few_ops: int = 2_000
    micro_batches_per_rank: int = 3


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


# Recomputation


@dataclass(frozen=True)
class RecomputeTrialTuning:
    """Choosing what to recompute by trials of the solver."""

    # Share of the time limit for all trials.
    share: float = 0.4
    # Numbers of first stages to try, and the same if choices of layers are tried too.
    most_counts: int = 9
    most_counts_beside_layers: int = 4
    # Numbers of stages tried on partitions of their own: the best one and its neighbours.
    near_counts: int = 3
    # Share of the time limit for the search for layers, and how many of its choices are tried.
    layers_share: float = 0.15
    layer_choices: int = 3
    # Further choices of layers to try if the search with the best one ends early, and the share of
    # the remaining time for each.
    further_choices: int = 16
    further_share: float = 0.5
    # Share of the time limit that must remain for one of these to begin.
    least_share: float = 0.02


@dataclass(frozen=True)
class LayerSearchTuning:
    """Search for layers to recompute, judged by list scheduling."""

    # Numbers of micro-batches in flight that must fit, as multiples of 1F1B's. Those that are best
    # most often come first, as there may be no time for all.
    in_flight_shares: tuple[float, ...] = (1.0, 0.75, 0.5, 1.5, 1.25, 2.0, 0.25, 0.0)
    # Attempts to correct a rank's estimated memory if it was too low.
    corrections: int = 8
    # Choices up to which all are tried.
    few_choices: int = 16


@dataclass(frozen=True)
class LayerMenuTuning:
    """Menus of the Pareto-optimal choices of layers for a stage."""

    # Largest and smallest number of choices for a row of layers that are followed further, for each
    # treatment of the last layer.
    most_followed: int = 48
    least_followed: int = 4
    # Bound on the layers times the square of the choices followed, with which the work grows; it
    # keeps a menu at some milliseconds.
    followed_squared: int = 25_000


@dataclass(frozen=True)
class RecomputeBoundTuning:
    """Closed-form bounds over all choices of recomputation."""

    # Stages times choices of a rank up to which such a bound respects memory limits; with more it
    # would take seconds.
    most_closed_forms: int = 1_100
    # Stages on one rank up to which all choices of these stages are looked at.
    most_held: int = 4
    # Choices of layers looked at for a rank, over all its stages.
    most_choices_of_rank: int = 64
    # Choices over all ranks up to which they are looked at rank by rank.
    most_rank_by_rank: int = 200


@dataclass(frozen=True)
class RepartitionTuning:
    """Solving on two partitions for given stages that recompute."""

    # Share of the time limit for the partition that does not count R's time.
    first_share: float = 0.6


# Choice of placement and partition


@dataclass(frozen=True)
class JudgingTuning:
    """Judging the published schedules of all candidates, before the first trial."""

    # Shares of the remaining time after which no more schedules are judged: as published, and with
    # recomputation.
    published_share: float = 0.6
    with_r_share: float = 0.5
    # Ops judged per second as a deterministic search counts them, and the seconds per op that must
    # remain by the clock.
    ops_per_s: int = 20_000
    s_per_op: float = 10e-6
    # Approximate time of the passes, relative to the first: of families that read no times, of
    # those that read times, with layers recomputed, and of the second with stages that recompute.
    untimed_cost: int = 1
    timed_cost: int = 3
    layers_cost: int = 4
    timed_with_r_cost: int = 12
    # Multiple of the best value up to which a schedule gets partitions for the stages that it
    # recomputes.
    near: float = 1.15


@dataclass(frozen=True)
class JudgedScheduleTuning:
    """Published schedules of one candidate, with recomputation."""

    # Multiple of the best value of all candidates up to which an order is tried with fewer stages
    # recomputing.
    near: float = 1.15
    # Choices of layers on which families are judged.
    layer_choices: int = 3
    # List scheduling, which makes that choice, places as many ops as this number of schedules has.
    layer_search_schedules: int = 96
    # Schedules that it counts as for the deadline: an op is placed in less time than it is judged.
    layer_search_counts_as: int = 20


@dataclass(frozen=True)
class RaceTuning:
    """Timed trials of placements and partitions."""

    # Shares of the remaining time: for a trial of every candidate worth one, then for one of the
    # best few.
    first_share: float = 0.3
    second_share: float = 0.4
    # Multiple of the best value up to which a candidate is worth a trial of the first round, or its
    # partitions are searched.
    worth_a_trial: float = 1.15
    # Candidates in the second round, and placements whose partitions are searched.
    few: int = 3
    # Multiple of the best value up to which a candidate is near it.
    near: float = 1.03
    # Share of the others' gap below which the leader's gap is small.
    own_gap_share: float = 0.5
    # Share of the time limit that must remain for another trial to begin.
    least_share: float = 0.02
    # Least time of a trial of the first round, in seconds per op of the first candidate.
    trial_s_per_op: float = 200e-6
    # Shorter trials skip the published schedules if there is a schedule already.
    least_for_families_s: float = 2.0
    # Share of the time limit for the first partition, before others are searched, if there are no
    # bounds over all partitions.
    start_share: float = 0.5
    # Share of the remaining time for a search for partitions, before the rounds.
    partitions_share: float = 0.15
    # Share of the remaining time for further partitions: after the rounds, and again when the
    # trials near the best are over or account for little of the gap.
    further_share: float = 0.25


@dataclass(frozen=True)
class PartitionTrialTuning:
    """Search for partitions that get a trial."""

    # Share of the time of the search for proofs.
    proofs_share: float = 0.6
    # Partitions that get a trial, including the first one: of a single placement, and of each of
    # several.
    partitions_of_one: int = 3
    partitions_of_each: int = 2


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


# Data-parallel pipelines with sharded state


@dataclass(frozen=True)
class ShardedPipelinesTuning:
    """Local search over the places of all-gathers and reduce-scatters in given orders."""

    # Placements of one pipeline that are tried unless one is given.
    placements: tuple[str, ...] = ("linear", "looped:2", "v")
    # Share of the time for the orders of one pipeline.
    orders_share: float = 0.4
    # Orders of each search that are kept, the best ones, besides the published ones.
    orders_kept: int = 3
    # Ops between an UNSHARD and its first reader, and stages that are whole on a rank at once
    # (None: as many as fit), in first places.
    aheads: tuple[int, ...] = (1, 3, 0, 8)
    most_open: tuple[int | None, ...] = (None, 1, 2)
    # Times that first places are made again with less room, if a rank exceeds its limit.
    corrections: int = 4
    # Places that are kept to begin from, and the moves of one run.
    pool_size: int = 6
    moves_per_run: int = 100
    # Moves of which all are impossible, after which a run ends.
    draws_per_move: int = 20
    # Most ops by which a move shifts a collective, and the shares of moves that shift one and that
    # leave one out; the others add one.
    farthest: int = 8
    shifted_share: float = 0.6
    dropped_share: float = 0.2
    # Effort of an evaluation: in all, and for each op of all ranks.
    evaluation_s: float = 1.5e-3
    evaluation_s_per_op: float = 1e-5
    # A search that has no schedule yet goes on without time for this many evaluations, or for this
    # effort if they take more.
    least_evaluations: int = 60
    most_beyond_s: float = 2.0


@dataclass(frozen=True)
class ReasonTuning:
    """The known schedule that a plan is compared with."""

    # F, B and W ops beyond which ZB-V is not generated. Fitting it to the times of the
    # stages takes 0.1 ms for each op.
    most_ops_of_v: int = 10_000


LIST_JUDGING = ListJudgingTuning()
BALANCE = BalanceTuning()
SEVERAL_STAGES = SeveralStagesTuning()
TIGHT_CAPS = TightCapTuning()
PARTITION_BOUNDS = PartitionBoundTuning()
PARTITION_QUEUE = PartitionQueueTuning()
RECOMPUTE_TRIALS = RecomputeTrialTuning()
LAYER_SEARCH = LayerSearchTuning()
LAYER_MENU = LayerMenuTuning()
RECOMPUTE_BOUNDS = RecomputeBoundTuning()
REPARTITION = RepartitionTuning()
JUDGING = JudgingTuning()
JUDGED_SCHEDULES = JudgedScheduleTuning()
RACE = RaceTuning()
PARTITION_TRIALS = PartitionTrialTuning()
LEAST_CAP = LeastCapTuning()
CURVE = CurveTuning()
STEADY_CAP = SteadyCapTuning()
REPROVE = ReproveTuning()
SHARDED_PIPELINES = ShardedPipelinesTuning()
REASON = ReasonTuning()
