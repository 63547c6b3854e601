"""Numeric constants of the improvers, except for modulo scheduling."""

from dataclasses import dataclass


@dataclass(frozen=True)
class PublishedTuning:
    """Published schedules as first incumbents."""

    # Time for published schedules even if the limit is shorter; enough for ordinary problems.
    grace_s: float = 0.5
    # Share of the time limit after which no more are tried.
    share: float = 0.5
    # Seconds per op that making a schedule takes that reads times, at most: the zero-bubble greedy
    # tries many warm-ups (32 ranks, 512 micro-batches).
    timed_s_per_op: float = 60e-6
    # Ratio of a lower memory limit for which families make schedules to the next higher one.
    lower_limit_ratio: float = 2**-0.25


@dataclass(frozen=True)
class ReleaseDatesTuning:
    """List schedules whose micro-batches have release dates."""

    # Ops placed by all of them, about: by compiled code, and by Python.
    most_compiled_ops: int = 1_000_000
    most_ops: int = 12_000
    # The share of these ops for each second of a search's time limit, for all bufferings together,
    # and the least share for each.
    share_per_s: float = 0.05
    least_share: float = 0.1
    # Most orders for each buffering at the beginning of the search: those of few ops soon repeat.
    quick_orders: int = 1_200
    # Share of the orders at uniform intervals, about; half of the others begin with a burst.
    uniform_share: float = 0.4
    # By rule: BW instead of B, F before B, the W's that may wait (None: all), and the patience
    # before one of them.
    rules: tuple[tuple[bool, bool, int | None, float], ...] = (
        (True, False, 0, 0.0),
        (False, False, 0, 0.0),
        (False, False, 1, 0.5),
        (False, False, None, 0.5),
        (False, True, None, 1.0),
    )
    # The first uniform interval as a share of the busiest rank's work for a micro-batch, the last
    # one as a multiple of the first, and the least and the largest ratio of one to the one before.
    first: float = 0.7
    range: float = 30.0
    ratio: float = 1.06
    most_ratio: float = 1.5
    # Micro-batches of a burst as shares of the ranks, the intervals after it as shares of the
    # busiest rank's work, further intervals between both, and the rules that are tried.
    burst_shares: tuple[float, ...] = (0.5, 0.75, 1.0, 1.5)
    interval_shares: tuple[float, ...] = (0.8, 0.95, 1.1)
    pauses: tuple[float, ...] = (0.0, 1.0, 3.0)
    rules_after_burst: int = 2
    # Share of changes that move release dates; standard deviations of a move in the busiest rank's
    # work for a micro-batch, and of a stretch.
    dates_share: float = 0.65
    deviation: float = 0.3
    stretch_deviation: float = 0.1


@dataclass(frozen=True)
class ListSchedulingTuning:
    """Effort of list scheduling, in ops placed, so that a search is repeatable."""

    # At the beginning of the search, and the most for each op of the problem: the rules of short
    # orders soon repeat.
    quick_ops: int = 40_000
    quick_ops_per_op: int = 300
    # Most of the time that is left, where the search goes on from the schedule of another one.
    quick_share_of_left: float = 0.1
    # Later, per second of the time limit; the second value is where modulo schedules of several
    # micro-batches are better starts.
    ops_per_s: int = 6_000
    ops_per_s_before_modulo: int = 2_500
    # Best orders of one call that are verified and simulated exactly.
    orders_evaluated: int = 4
    # Memory models over which the effort is divided, at most.
    most_models: int = 3
    # Fewest schedules of one call, and fewest of the uniform rules.
    fewest_schedules: int = 12
    fewest_uniform_rules: int = 6
    # Ops that compiled code places in the time in which plain Python places one.
    compiled_speed: int = 10
    # Ends of ops between two looks at the clock within a schedule; about 0.05 s.
    events_per_poll: int = 4_096


@dataclass(frozen=True)
class AnnealingTuning:
    """Simulated annealing over single moves."""

    # Effort units: one per op of the problem for each move; the rate is of one core.
    units_per_s: int = 90_000_000
    # Farthest move in places, and the share of moves by one place.
    farthest: int = 12
    adjacent_share: float = 0.5
    # Share of moves that fuse or split B and W, where BW gains anything.
    fusion_share: float = 0.05
    # Share of moves that change what goes to the host's memory, where it may; the share of those on
    # a moved activation that let it stay; and the most ops that L is put before B, or goes at once.
    host_share: float = 0.3
    stays_share: float = 0.25
    most_ahead: int = 8
    # Temperature at the beginning and the end of a round, in mean op durations.
    hottest: float = 0.2
    coldest: float = 0.01
    # Long rounds: the share of the effort left that each takes, and its first temperature in mean
    # op durations. The hottest one leaves nothing of the order from which it begins.
    long_rounds: tuple[tuple[float, float], ...] = ((1 / 7, 0.1), (1 / 3, 4.0), (1.0, 0.5))
    # Moves per op that a round must have for each mean op duration of its first temperature; with
    # fewer it begins at another one, since it would not return to an order as good as the first.
    moves_per_op_of_heat: int = 300
    hottest_of_short: float = 0.1
    # The last temperature of a long round, in mean op durations.
    coldest_of_long: float = 0.004
    # Effort at each of its temperatures.
    units_per_temperature: int = 250_000
    # Times that a long round is asked for better orders.
    looks_of_long: int = 20
    # Moves per op in the first round and in the longest, and their growth from race to race.
    moves_per_op: int = 2
    most_moves_per_op: int = 2_000
    growth: float = 1.5
    # First rounds that must fit into the time, where building blocks could have it.
    first_rounds: int = 3
    # In a race between bufferings: the share that continues, and the growth of its moves per op.
    kept_in_race: float = 0.34
    growth_in_race: float = 3.0
    # Compiling takes some twenty seconds, once; a search with less time does not wait for it.
    least_s_to_compile: float = 20.0
    # Effort between two looks at the clock.
    units_per_look: int = 1_000_000
    # Bufferings tried besides those of the evaluation: few buffers, for ranks at their limits.
    tight_bufferings: tuple[tuple[int, int], ...] = (
        (0, 2),
        (0, 4),
        (1, 0),
        (1, 3),
        (2, 1),
        (2, 2),
    )
    # Share of the time limit without a gain after which the first run ends: about what the first
    # rounds of all bufferings take under a limit of a few seconds.
    least_stalled_share: float = 0.2
    # The same share where the exact model follows, which soon finds more in so small a problem.
    least_stalled_share_before_exact: float = 0.02


@dataclass(frozen=True)
class ExtendTuning:
    """Extending a schedule by its steady-state segment."""

    # Segments rated for each size, those of the shortest time first.
    rated_segments: int = 60
    # Sizes, and segments of each, that are extended to the whole.
    sizes: int = 3
    segments_per_size: int = 12
    # Orders returned.
    returned: int = 4


@dataclass(frozen=True)
class ShortInstanceTuning:
    """The short instance that is solved exactly and extended."""

    # Micro-batches per rank of the short instance, and their largest share of all.
    micro_batches_per_rank: float = 2.25
    most_kept_share: float = 2 / 3
    # With several stages per rank: some rank holds at most this share of 1F1B's forwards.
    tight_share: float = 0.5
    # Estimated time for each pair of ops; the second value is for several stages per rank.
    s_per_pair: float = 1e-5
    s_per_pair_of_several: float = 5e-5
    # Share of the remaining time, and the largest short instance.
    share: float = 0.5
    most_ops: int = 2_000
    # Pause between two extensions, in durations of one.
    pauses: int = 5


@dataclass(frozen=True)
class WindowTuning:
    """Large-neighbourhood search over windows of time."""

    # (ops, seconds of effort) of the window sizes among which a bandit chooses.
    sizes: tuple[tuple[int, float], ...] = (
        (24, 0.25),
        (48, 1.0),
        (96, 3.0),
        (192, 6.0),
        (384, 10.0),
        (960, 20.0),
    )
    # Windows up to this size are always allowed, larger ones up to half of all ops.
    always_ops: int = 192
    # Starting orders race with windows of this size for this share of the effort.
    race_ops: int = 48
    race_share: float = 0.04
    # Effort besides CP-SAT's: per op of a window to build it, per op of all to evaluate a change.
    build_s_per_op: float = 1e-4
    evaluate_s_per_op: float = 1.5e-6
    # One window in this many is long and free on few ranks only.
    narrow_every: int = 4
    free_ranks: int = 2
    longest_ops: int = 2_000
    # Draws of a window until one has no ops in common with those being solved.
    draws: int = 8
    # Interval at which running windows are awaited.
    poll_s: float = 0.05
    # Time without a gain after which moves for robustness follow: share of the time limit, and the
    # least, in which a few windows of every size end.
    patience_share: float = 0.03
    least_patience_s: float = 1.5
    # Orders to start from.
    starts: int = 3
    # Pause between two exact evaluations, in durations of one.
    pauses: int = 5


@dataclass(frozen=True)
class BanditTuning:
    """The bandit over window sizes."""

    # Weight of past gains and costs after each window of a size.
    decay: float = 0.95
    # Least share of the best arm's effort for each other arm.
    least_share: float = 0.1
    # Expected gain per second before a size was tried, as a share of the objective, and the
    # seconds of experience that it counts for.
    expected_gain_share: float = 0.001
    expected_s: float = 2.0
    # A size is exhausted after windows without a gain that hold this many times all ops, and at
    # least this many windows.
    cover: int = 1
    fewest_windows: int = 10


@dataclass(frozen=True)
class RobustnessTuning:
    """Moves that lower the mean objective over duration scenarios."""

    # Farthest move in places.
    farthest: int = 4
    # Paths shorter than the longest by this share count little in the second preference.
    near_share: float = 0.01
    # Differences below this are rounding errors.
    tolerance_us: float = 1e-6
    # Effort: ops of the orders tried, orders tried at most, and in a row without a gain.
    effort_ops: int = 60_000
    most_trials: int = 150
    patience: int = 30


PUBLISHED = PublishedTuning()
LIST_SCHEDULING = ListSchedulingTuning()
RELEASE_DATES = ReleaseDatesTuning()
ANNEALING = AnnealingTuning()
EXTEND = ExtendTuning()
SHORT_INSTANCE = ShortInstanceTuning()
WINDOWS = WindowTuning()
BANDIT = BanditTuning()
ROBUSTNESS = RobustnessTuning()
