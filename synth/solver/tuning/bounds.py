"""Numeric constants of lower bounds: their models, their order, and proving them again."""

from dataclasses import dataclass


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
    # Most ops of a rank with several stages for the model of that rank alone. Beyond, idle times
    # prove more in the same time.
    most_ops_alone: int = 200
    # Share of the remaining time for the trials of one size.
    share: float = 0.4
    # The same for two ranks far apart, which prove most of the bound where spacings are known.
    far_apart_share: float = 0.6
    # Least time of one trial.
    shortest_trial_s: float = 0.2
    # Share of the time of the least sets for the ranks of joint spacings.
    spaced_share: float = 0.6
    # Share of the time for the first rank, which may prove most, when ranks of one stage are alone.
    first_rank_share: float = 0.5
    # From this many ranks on, precedences of ops are literals in CP-SAT's disjunctive constraint,
    # up to this many ops per rank.
    ranks_with_precedence_literals: int = 4
    most_ops_with_precedence_literals: int = 120


@dataclass(frozen=True)
class DestructiveTuning:
    """Questions whether some ranks keep within a value."""

    # Fewest ops of the largest model; smaller ones are minimised at once.
    fewest_ops: int = 60
    # Seconds of effort for a question, and their growth where it was not answered.
    first_effort_s: float = 0.8
    effort_growth: float = 3.0
    # A question as a share of what is open, as long as some set of ranks kept no value.
    first_share: float = 0.25
    # What may stay open, as a share of the value.
    tolerance: float = 5e-4


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
class JointSpacingTuning:
    """Least times within which forwards of both copies of the model start."""

    # Fewest micro-batches of a copy; below, models of all of them prove as much at once.
    fewest_micro_batches: int = 6
    # Forwards of each copy by which the stage is chosen: the first one that is this near to the
    # most. The model of its ranks may have those of a stage below it, too.
    first_forwards: int = 4
    nearly_most: float = 0.9
    # Forwards of both copies are compared whose numbers differ by no more, and counts of them that
    # differ by no more than twice as many.
    farthest: int = 4
    most_uneven: int = 2
    # Share of the time of the least sets of ranks, and the largest share of it for one model.
    share: float = 0.3
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

    # Ranks that hold several stages: a trial of spacings and of idle times, and what continues.
    trial_share: float = 0.1
    share_of_several: float = 0.5
    # Spacings go on without a trial of idle times if they raise the bound by this factor. Either
    # kind goes on if it is this near to the best bound: later proofs gain from spacings too.
    clearly_more: float = 1.2
    nearly_as_much: float = 1.02
    # Ranks that hold one stage: idle times from this many micro-batches on, and their share.
    idle_time_from_micro_batches: int = 40
    first_idle_time_share: float = 0.05
    # Share for spacings: all of it from this many micro-batches on, proportionally less below.
    spacing_share: float = 0.5
    full_spacing_from_micro_batches: int = 64
    # Share of the time limit for each rank alone: where it holds one stage, where spacings prove
    # more, and where it holds several stages.
    one_by_one_share: float = 0.08
    one_by_one_share_with_spacings: float = 0.03
    one_by_one_share_of_several: float = 0.5
    # Share of the remaining time where bounds take turns with the search; the second value is for
    # ranks that hold several stages, where single ranks have proven most by then.
    in_turn_share: float = 0.3
    in_turn_share_of_several: float = 0.2
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


RANK_SUBSETS = RankSubsetTuning()
DESTRUCTIVE = DestructiveTuning()
FORWARD_SPACING = ForwardSpacingTuning()
JOINT_SPACING = JointSpacingTuning()
IDLE_TIME = IdleTimeTuning()
BOUND_POLICY = BoundPolicyTuning()
RECHECK = RecheckTuning()
