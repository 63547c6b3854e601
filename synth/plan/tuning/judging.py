"""Constants of judging by list scheduling and by published schedules."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ListJudgingTuning:
    """Judging partitions and choices of layers by list scheduling."""

    # Priority rules tried on each variant; twice as many on partitions if ranks hold several
    # stages.
    rules: int = 12
    # The best rule so far comes first on a variant; the others are skipped if its value exceeds
    # this multiple of the best value.
    far_factor: float = 1.15
    # Multiple of the best value up to which a variant is worth a trial of the solver.
    near_factor: float = 1.05
    # Approximate speed of list scheduling, in ops placed per second.
    ops_per_s: int = 100_000
    # Ops up to which a variant is judged with all micro-batches, and the micro-batches per rank
    # with which it is judged otherwise.
    few_ops: int = 2_000
    micro_batches_per_rank: int = 3


@dataclass(frozen=True)
class JudgingTuning:
    """Judging the published schedules of all candidates, before the first trial."""

    # Shares of the remaining time after which no more schedules are judged: as published, and with
    # recomputation.
    published_share_of_left: float = 0.6
    with_r_share_of_left: float = 0.5
    # The part of these shares of a single placement, if its cut is given or even, or schedules are
    # judged on other cuts, too.
    first_cut_share: float = 0.4
    # Ops judged per second as a deterministic search counts them, and the seconds per op that must
    # remain by the clock.
    ops_per_s: int = 20_000
    s_per_op: float = 10e-6
    # Ops that are judged although the time is over: until there is a schedule at all, and until
    # there is one on each placement; and the ops as which one of a family that reads times counts.
    first_ops: int = 200_000
    late_ops: int = 100_000
    late_timed_cost: int = 5
    # Approximate time of the passes, relative to the first: of families that read no times, of
    # those that read times, with layers recomputed, and of the second with stages that recompute.
    untimed_cost: int = 1
    timed_cost: int = 3
    layers_cost: int = 4
    timed_with_r_cost: int = 12
    # Multiple of the best value up to which a schedule gets partitions for the stages that it
    # recomputes.
    near_factor: float = 1.15
    # Ops of all schedules judged on placements that are not searched: a fraction of a second.
    unsearched_most_ops: int = 30_000


@dataclass(frozen=True)
class JudgedScheduleTuning:
    """Published schedules of one candidate, with recomputation."""

    # Multiple of the best value of all candidates up to which an order is tried with fewer stages
    # recomputing.
    near_factor: float = 1.15
    # Choices of layers on which families are judged.
    layer_choices: int = 3
    # List scheduling, which makes that choice, places as many ops as this number of schedules has.
    layer_search_schedules: int = 96
    # Schedules that it counts as for the deadline: an op is placed in less time than it is judged.
    layer_search_counts_as: int = 20


LIST_JUDGING = ListJudgingTuning()
JUDGING = JudgingTuning()
JUDGED_SCHEDULES = JudgedScheduleTuning()
