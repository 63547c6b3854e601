"""Numeric constants of the search among schedules with weight passing."""

from dataclasses import dataclass


@dataclass(frozen=True)
class WeightPassingTuning:
    """Local search over orders with weight passing."""

    # Number of ops between the start of a visit and its first reader: in published schedules,
    # besides the default of one; in first orders; and in moves.
    other_aheads: tuple[int, ...] = (0, 2, 3)
    first_aheads: tuple[int, ...] = (1, 3, 0, 8)
    aheads: tuple[int, ...] = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24)
    # Pairs of receive-ahead and send-behind; few buffers fit more, many wait less.
    bufferings: tuple[tuple[int, int], ...] = (
        (1, 2),
        (0, 0),
        (0, 1),
        (1, 1),
        (1, 4),
        (1, 8),
        (2, 16),
        (4, 16),
        (8, 32),
        (99, 999),
    )
    # The choices on a ring with which the least memory is tried: buffers of receives and sends,
    # ops before the first reader, and stages that are open at once.
    frugal_bufferings: tuple[tuple[int, int], ...] = ((0, 0), (0, 1), (1, 0))
    frugal_aheads: tuple[int, ...] = (0, 3)
    frugal_most_open: tuple[int | None, ...] = (1, 2, None)
    # Bufferings that are tried if all of those are a deadlock, as with several stages per rank.
    roomier_bufferings: tuple[tuple[int, int], ...] = ((1, 1), (1, 2), (2, 4), (99, 999))
    # Problems whose least memory is remembered.
    remembered_least_memories: int = 32
    # Other choices tried for the best first orders between two runs of annealing.
    batch: int = 40
    # Times that visits are placed again with less room, if a rank exceeds its limit.
    corrections: int = 4
    # Orders that are kept to begin from, and the moves of one run of annealing.
    pool_size: int = 6
    moves_per_run: int = 300
    # Temperature at the beginning and the end of a run, as shares of the value.
    hottest_share: float = 0.01
    coldest_share: float = 0.0003
    # Largest distance of a move, and the share of moves that change the placing of visits.
    farthest: int = 16
    placing_share: float = 0.2
    # Share of moves on a ring that change the order of one rank alone.
    alone_share: float = 0.3
    # F's of all ranks up to which the programs of a ring are changed one by one; the moves between
    # two evaluations; and the weights of shifting an op, dropping or adding a visit, and splitting
    # or fusing a backward.
    most_moved_forwards: int = 32
    ring_moves: tuple[int, ...] = (1, 1, 2)
    ring_move_weights: tuple[float, ...] = (0.7, 0.1, 0.1, 0.1)
    # Slots up to which all schedules with all-gathers are a model for CP-SAT, the share of the time
    # left that it gets, and the growth of that time from which it is tried again.
    most_exact_slots: int = 32
    # F's of all ranks up to which all schedules of a ring are enumerated.
    most_enumerated_forwards: int = 4
    exact_share: float = 0.5
    exact_growth: float = 1.5
    # Effort of an evaluation in a deterministic search, in seconds per op of all ranks.
    evaluation_s_per_op: float = 1e-5
    # Evaluations without a schedule after which a search without time ends.
    least_evaluations: int = 8
    # Numbers of stages per rank to try where weights are gathered.
    stages_per_rank: tuple[int, ...] = (1, 2, 4)
    # Share of the time for the first trials of all candidates.
    trial_share: float = 0.4
    # Share of the remaining time for pipelines, whose weights stay: if their bounds let them win,
    # and if not.
    staying_share: float = 0.7
    unlikely_share: float = 0.2
    # Multiple of the best value up to which a candidate is searched longer, and the shortest time
    # of such a search.
    near: float = 1.05
    shortest_part_s: float = 0.5


WEIGHT_PASSING = WeightPassingTuning()
