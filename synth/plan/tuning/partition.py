"""Constants of the partition: balance, local search, bounds and the choice of the next one."""

from dataclasses import dataclass


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

    # Share of the largest work of a rank within which partitions count as equally balanced: medians
    # of repeated measurements of a layer differ by about so much.
    noise_share: float = 0.01
    # Shares of the same that a search for partitions gives up for more even stages.
    compromise_shares: tuple[float, ...] = (0.0, 0.03, 0.1)
    # Random kicks in all, and kicks in a row without success that end the search.
    kicks: int = 60
    kicks_in_vain: int = 20
    # Exact memory evaluations in all, and those before a local optimum is accepted.
    memory_evaluations: int = 400
    tries_at_optimum: int = 12


@dataclass(frozen=True)
class LifetimeCutTuning:
    """The cut on which ranks are busy for the shortest time, with work or with full memory."""

    # Moves from all cuts with which it begins, together: their number grows with the square of the
    # stages, and each is tried hundreds of times.
    moves_at_once: int = 12_000
    # The time of a rank without room for activations: above that of any other.
    no_room_us: float = 1e15


@dataclass(frozen=True)
class TightCapTuning:
    """Search for partitions under tight memory limits, judged by list scheduling."""

    # Partitions of the least bounds that are tried before the neighbours.
    leaps: int = 4
    # Share of the remaining time for bounds, to find the next of those.
    leap_share_of_left: float = 0.3
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
    # Least effort of a question, in seconds: most are answered within.
    least_question_s: float = 0.04
    # Share of the time for models of several ranks of a partition, when it is first bounded so;
    # each further time it is twice as long.
    first_share_of_several: float = 0.1
    # Ranks that are modelled together with the one that proves most.
    second_ranks: int = 3
    # Approximate time of the closed forms of one run of layers.
    closed_form_s: float = 0.001


@dataclass(frozen=True)
class PartitionQueueTuning:
    """Choice of the next partition to try."""

    # Share of the time for the bounds by which one partition is chosen.
    share: float = 0.4
    # Time that choosing one counts in a deterministic search.
    choice_s: float = 0.01


BALANCE = BalanceTuning()
SEVERAL_STAGES = SeveralStagesTuning()
LIFETIME_CUT = LifetimeCutTuning()
TIGHT_CAPS = TightCapTuning()
PARTITION_BOUNDS = PartitionBoundTuning()
PARTITION_QUEUE = PartitionQueueTuning()
