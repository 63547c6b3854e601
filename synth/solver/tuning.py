"""Numeric constants of the solver, one frozen dataclass for each component.

Limits of size and effort are here, and shares of time; nothing here changes what is correct, only
how long it takes. `docs/solver-notes.md` says where values were measured. Units are in the names:
`_s` seconds, `_us` microseconds, `_share` a part of a whole from 0 to 1, `_ops` F, B and W ops.
"""

from dataclasses import dataclass

# CP-SAT


@dataclass(frozen=True)
class CpsatTuning:
    """Calls of CP-SAT, and the worker processes that serve them."""

    # Clock seconds per deterministic second of a small model, roughly.
    clock_s_per_deterministic_s: float = 8.0
    # Shortest time limit; with less CP-SAT does not even take the hint.
    shortest_limit_s: float = 0.01
    # Tolerance of a bound, which CP-SAT gives as a float although values are integers.
    bound_tolerance: float = 1e-6
    # Interval at which a call asks whether to stop.
    poll_s: float = 0.05
    # Time for a worker to obey a stop before it is killed; its results have been reported by then.
    stop_grace_s: float = 1.0
    # Time for a worker to end once its pipes are closed.
    exit_s: float = 2.0
    # Bytes from the end of a dead worker's stderr that are logged.
    stderr_tail_bytes: int = 4_000


@dataclass(frozen=True)
class ExactModelTuning:
    """Forms of the memory limit, and the size of disjunctive choices."""

    # Ops of a rank with several stages up to which memory is counted by pairwise order literals;
    # beyond, it is a reservoir. Literals grow with the square (solver-notes, "reservoir").
    most_counted_ops: int = 120
    # The same in forward-spacing models and in models of few ranks that keep spacings.
    most_counted_ops_of_spacing: int = 400
    # The same in idle-time models.
    most_counted_ops_of_idle_time: int = 1_000
    # The same for one rank of a window.
    most_counted_ops_of_window: int = 32
    # Passing pairs of one model. With more it takes long to build, so ranks are left out.
    most_passing_pairs: int = 60_000


# Bounds


@dataclass(frozen=True)
class RankSubsetTuning:
    """Growing sets of ranks that are modelled exactly."""

    # Ranks tried as the second member, and as each further one.
    second_rank_trials: int = 4
    further_rank_trials: int = 2
    # Members from which on all ranks are added at once.
    few_ranks: int = 3
    # Largest model. A larger one takes seconds to build, during which nothing can stop it.
    most_ops: int = 4_000
    # Share of the remaining time for the trials of one size.
    share: float = 0.4
    # The same for two ranks far apart, which prove most of the bound where spacings are known.
    far_apart_share: float = 0.6
    # Least time of one trial.
    shortest_trial_s: float = 0.2
    # Share of the time for rank 0, which waits longest for its first B, when ranks are alone.
    first_rank_share: float = 0.5
    # From this many ranks on, precedences of ops are literals in CP-SAT's disjunctive constraint,
    # up to this many ops per rank.
    ranks_with_precedence_literals: int = 4
    most_ops_with_precedence_literals: int = 120


@dataclass(frozen=True)
class ForwardSpacingTuning:
    """Least distances between forwards of the first stage."""

    # Fewest micro-batches; below, models of all of them prove as much at once. The second value is
    # for ranks that hold several stages.
    fewest_micro_batches: int = 24
    fewest_micro_batches_of_several: int = 12
    # Up to this length every length is proven; beyond, lengths grow by a share of themselves, to
    # multiples of a burst, which add up best.
    dense_length: int = 40
    growth_share: float = 0.2
    # Longest length as a share of all micro-batches.
    longest_share: float = 0.6
    # Largest share of the time for one length.
    share_of_one: float = 0.3


@dataclass(frozen=True)
class IdleTimeTuning:
    """Least idle time in the warm-up and the drain of a rank."""

    # Ranks tried as the second member of a model.
    second_rank_trials: int = 4
    # Ranks within this share of the best bound may gain more from further ranks.
    nearly_best_share: float = 0.98
    # Growth of a stretch, and the least growth where the proven time cuts it.
    growth: float = 1.5
    least_growth: float = 1.02
    # Gain in idle time, as a share of the stretch, that makes a larger model worth solving next.
    worthwhile_share: float = 0.02
    # Largest share of the remaining time for one model; the second value is for the first rank.
    share_of_one: float = 0.35
    first_rank_share: float = 0.5


@dataclass(frozen=True)
class BoundPolicyTuning:
    """Order and shares of the bounds. Shares are of the time that remains."""

    # Ranks that hold several stages: idle times, a trial of each kind, and the better kind.
    idle_time_share: float = 0.9
    trial_share: float = 0.15
    share_of_several: float = 0.6
    # Spacings go on without a trial of idle times if they raise the bound by this factor, and go
    # first if they are this near to idle times: later proofs gain from them too.
    clearly_more: float = 1.2
    nearly_as_much: float = 1.02
    # Ranks that hold one stage: idle times from this many micro-batches on, and their share.
    idle_time_from_micro_batches: int = 40
    first_idle_time_share: float = 0.05
    # Share for spacings: all of it from this many micro-batches on, proportionally less below.
    spacing_share: float = 0.5
    full_spacing_from_micro_batches: int = 64
    # Share of the time limit for each rank alone; the second value is where spacings prove more.
    one_by_one_share: float = 0.08
    one_by_one_share_with_spacings: float = 0.03
    # Share of the remaining time where bounds take turns with the search.
    in_turn_share: float = 0.3
    # Interval at which the end of the background bounds is awaited.
    poll_s: float = 0.02


@dataclass(frozen=True)
class RecheckTuning:
    """Sizes of the models by which a certificate is proven again."""

    # Larger models take long to build and prove nothing in practice.
    most_ops: int = 12_000
    # Models of this many ranks are exempt from that limit, and need only one worker.
    few_ranks: int = 3
    # Ops of a mixed-integer program, which has a variable for each pair of ops.
    most_milp_ops: int = 1_000
    # Values below the claimed bound that stay in the domain. With none OR-Tools 9.15 gets a model
    # without an objective, on which it may fail a check.
    spare_values: int = 1


# Evaluation


@dataclass(frozen=True)
class EvaluationTuning:
    """Exact evaluation of orders."""

    # (receive_ahead, send_behind) to try, the default first. Fewer buffers help a rank at its
    # limit, more help where a sender waits for its receiver.
    bufferings: tuple[tuple[int, int], ...] = (
        (1, 2),
        (1, 4),
        (2, 4),
        (4, 8),
        (1, 1),
        (0, 1),
        (0, 0),
    )
    # Relative gain in robustness that is worth the memory of another buffering.
    worthwhile_gain: float = 0.001
    # Effort of fusing B and W: ops verified, within these numbers of evaluations.
    fusion_ops: int = 16_000
    fewest_fusion_trials: int = 6
    most_fusion_trials: int = 24


# Improvement


@dataclass(frozen=True)
class PublishedTuning:
    """Published schedules as first incumbents."""

    # Time for published schedules even if the limit is shorter; enough for ordinary problems.
    grace_s: float = 0.5
    # Share of the time limit after which no more are tried.
    share: float = 0.5


@dataclass(frozen=True)
class ListSchedulingTuning:
    """Effort of list scheduling, in ops placed, so that a search is repeatable."""

    # At the beginning of the search.
    quick_ops: int = 40_000
    # Later, per second of the time limit; the second value is where modulo schedules of several
    # micro-batches are better starts.
    ops_per_s: int = 6_000
    ops_per_s_with_rounds: int = 2_500
    # Best orders of one call that are verified and simulated exactly.
    orders_evaluated: int = 4
    # Memory models over which the effort is divided, at most.
    most_models: int = 3
    # Fewest schedules of one call, and fewest of the uniform rules.
    fewest_schedules: int = 12
    fewest_uniform_rules: int = 6


@dataclass(frozen=True)
class AnnealingTuning:
    """Simulated annealing over single moves."""

    # Effort units: one per op timed, and this many per move; the rate is of one core.
    units_per_s: int = 900_000
    units_per_move: int = 12
    # Farthest move in places, and the share of moves by one place.
    farthest: int = 12
    adjacent_share: float = 0.5
    # Share of moves that fuse or split B and W, where BW gains anything.
    fusion_share: float = 0.05
    # Temperature at the beginning and the end of a round, in mean op durations.
    hottest: float = 0.1
    coldest: float = 0.01
    # Moves per op in the first round and in the longest, and the growth of rounds.
    moves_per_op: int = 20
    most_moves_per_op: int = 2_000
    growth: float = 1.5
    # Moves between two looks at the clock.
    moves_per_look: int = 64
    # Bufferings tried besides those of the evaluation: few buffers, for ranks at their limits.
    tight_bufferings: tuple[tuple[int, int], ...] = (
        (0, 2),
        (0, 4),
        (1, 0),
        (1, 3),
        (2, 1),
        (2, 2),
    )
    # Share of the time limit without a gain after which the first run ends; most problems need no
    # more than that.
    least_stalled_share: float = 0.02


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
class OneMicroBatchTuning:
    """Modulo scheduling of one micro-batch per period, in coarse ticks."""

    # Exact ticks are used up to this many per period.
    most_exact_ticks: int = 400
    # Periods tried, in largest works of a rank, until this many patterns are found.
    period_shares: tuple[float, ...] = (1.0, 1.03, 1.06, 1.1, 1.15, 1.2, 1.3, 1.5)
    enough_patterns: int = 2
    # Ticks per largest work: with more the search stalls, with fewer unequal stages look alike.
    ticks: int = 36


@dataclass(frozen=True)
class PeriodSearchTuning:
    """Search for the shortest period (initiation interval) of several micro-batches.

    A *step* is the next period to try, as a share of the way from the longest period not found to
    the shortest found. Seconds are effort as `cpsat.run.decide` counts it.
    """

    # The search ends when the open interval is this share of the period.
    precision: float = 0.001
    # Largest share of the effort for one period, before and after one is found.
    share_before_found: float = 0.6
    share_after_found: float = 0.35
    # Undecided periods in a row after which a size is given up; and just below the shortest found.
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
    # Steps: at first and after a refuted period until one is found; after a refuted one later; at
    # first in thorough tries; after an undecided one; less by this after each found, down to the
    # least.
    first_step: float = 0.25
    later_step: float = 0.5
    first_thorough_step: float = 0.65
    step_after_undecided: float = 0.6
    step_decrease: float = 0.2
    least_step: float = 0.3
    # Until one is found: largest factor from one period to the next, since far too long periods
    # leave too many schedules; and the largest rise after an undecided one, since the transition
    # from refuted to found is sharp.
    most_rise: float = 1.25
    rise_after_undecided: float = 0.02


@dataclass(frozen=True)
class SeveralMicroBatchesTuning:
    """Modulo scheduling of several micro-batches per period."""

    # Micro-batches per period, in this order, after as many as fill the memory.
    sizes: tuple[int, ...] = (4, 2, 6, 3, 8)
    # Largest model.
    most_ops: int = 800
    # Least share of the remaining effort for one size.
    least_share: float = 0.7


@dataclass(frozen=True)
class ModuloTuning:
    """Shares of the time limit for modulo scheduling, and the unrolling."""

    # One micro-batch per period; the second value is where several are tried too.
    one_share: float = 0.05
    one_share_with_several: float = 0.02
    # Several micro-batches per period: share per micro-batch of the problem, and the most.
    several_share_per_micro_batch: float = 0.004
    most_several_share: float = 0.45
    # After a short instance: share for both together, and the least for this.
    share_with_short_instance: float = 0.35
    least_several_share: float = 0.08
    # Relative gain after a short instance that is of use: windows get farther from its schedules.
    least_gain: float = 0.01
    # Micro-batches of a period from which the unrolling begins, at most.
    most_unrollings: int = 8


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
    # Standard deviation of the factor on each duration, and the limits of the factor.
    deviation: float = 0.05
    least_factor: float = 0.5
    most_factor: float = 2.0
    # Scenarios, the nominal one included; fewer where (stage copy, micro-batch) pairs are many.
    scenarios: int = 25
    few_scenarios: int = 5
    many_cells: int = 10_000


# Weights that travel


@dataclass(frozen=True)
class TravelTuning:
    """Local search over orders whose weights travel."""

    # Number of ops between the begin of a visit and its first reader: in published schedules,
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


# The search as a whole


@dataclass(frozen=True)
class SearchTuning:
    """Sizes and shares of the steps (`policy.py`)."""

    # Largest problem. Even published schedules take minutes to generate and verify beyond.
    most_ops: int = 2_000_000
    # Chain of stage copies on a rank up to which the least peak is found exactly.
    most_copies_of_least_peak: int = 10
    # Factor between two bounds that are reported.
    reported_bound_factor: float = 1.001
    # Share of the time limit kept for robustness at the end.
    robustness_share: float = 0.05
    # Time for the final polish even if the limit has passed.
    grace_s: float = 0.5
    # Ops up to which the exact model gets all the time, and up to which it is tried briefly.
    exact_alone_ops: int = 240
    exact_brief_ops: int = 800
    brief_share: float = 0.15
    # Ops up to which the exact model may soon find or prove something, so that windows leave time
    # for it; the second value is for ranks that hold several stages.
    small_ops: int = 1_600
    small_ops_of_several: int = 800
    # Ops beyond which building the exact model costs more than it repays.
    exact_most_ops: int = 12_000
    # Share of the remaining time for windows, on small and on large problems.
    window_share: float = 0.4
    window_share_of_large: float = 0.95
    # Share of the remaining time for annealing: before the exact model, and after the windows.
    annealing_share_first: float = 0.5
    annealing_share: float = 0.5


CPSAT = CpsatTuning()
EXACT_MODEL = ExactModelTuning()
RANK_SUBSETS = RankSubsetTuning()
FORWARD_SPACING = ForwardSpacingTuning()
IDLE_TIME = IdleTimeTuning()
BOUND_POLICY = BoundPolicyTuning()
RECHECK = RecheckTuning()
EVALUATION = EvaluationTuning()
PUBLISHED = PublishedTuning()
LIST_SCHEDULING = ListSchedulingTuning()
ANNEALING = AnnealingTuning()
EXTEND = ExtendTuning()
SHORT_INSTANCE = ShortInstanceTuning()
WINDOWS = WindowTuning()
BANDIT = BanditTuning()
ONE_MICRO_BATCH = OneMicroBatchTuning()
PERIOD_SEARCH = PeriodSearchTuning()
SEVERAL_MICRO_BATCHES = SeveralMicroBatchesTuning()
MODULO = ModuloTuning()
ROBUSTNESS = RobustnessTuning()
TRAVEL = TravelTuning()
SEARCH = SearchTuning()
