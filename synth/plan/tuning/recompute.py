"""Constants of the choice of layers and stages that recompute."""

from dataclasses import dataclass


@dataclass(frozen=True)
class RecomputeTrialTuning:
    """Choosing what to recompute by trials of the solver."""

    # Share of the time limit for a trial of every choice, and for a second one of the best few.
    share_of_limit: float = 0.25
    second_share_of_limit: float = 0.15
    few: int = 3
    # Multiple of the best value up to which a choice gets a second trial.
    near_factor: float = 1.15
    # Least time of a trial, in seconds per op; with less time fewer choices have one.
    s_per_op: float = 200e-6
    # Numbers of first stages to try, and the same if choices of layers are tried too.
    most_counts: int = 9
    most_counts_beside_layers: int = 4
    # Numbers of stages tried on partitions of their own: the best one and its neighbours.
    near_counts: int = 3
    # Share of the time limit for the search for layers, and how many of its choices are tried.
    layers_share_of_limit: float = 0.1
    layer_choices: int = 3
    # Further choices of layers to try if the search with the best one ends early, and the share of
    # the remaining time for each.
    further_choices: int = 16
    further_share_of_left: float = 0.5
    # Share of the time limit that must remain for one of these to begin.
    least_share_of_limit: float = 0.02


@dataclass(frozen=True)
class ChoiceMovesTuning:
    """Moves of stages to other choices under the best order found."""

    # Share of the remaining time, after each search for an order.
    share_of_left: float = 0.1
    # Choices judged in a row without success that end the moves.
    in_vain: int = 32
    # Share of the remaining time for the search for an order before the last moves.
    search_share_of_left: float = 0.5
    # Trials for which the remaining time must be enough for a search after moves, and the share of
    # the time limit that must remain for it.
    least_trials: int = 20
    least_share_of_limit: float = 0.02
    # Ops judged per second as a deterministic search counts them.
    ops_per_s: int = 100_000


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

    # Stages on one rank up to which all choices of these stages are looked at.
    most_held: int = 4
    # Choices of a stage that may be mixed, besides R.
    most_mixed_of_stage: int = 48
    # Steps of the simplex method for the linear program of a rank.
    most_pivots: int = 200
    # Most nodes of branching for a rank, and the same times the stages of all ranks. A node takes
    # some milliseconds.
    most_branches: int = 31
    most_branches_of_all: int = 2_000


@dataclass(frozen=True)
class ChoiceProofTuning:
    """Branching over the choices of recomputation, for a bound of all of them."""

    # Least time of the first proof of a node, by the size of the problem and as a share of all
    # proofs; a node with a single choice gets twice as much each time, for so many proofs.
    s_per_op: float = 0.003
    share_of_limit: float = 0.05
    most_proofs: int = 8
    # Factor of a proof's limit that sets the time for one rank at a time.
    one_by_one_factor: float = 4.0
    # Trials for which the remaining time must be enough for proofs before the search.
    least_trials: int = 10
    # Shares of the remaining time where proofs take turns with the search, before and after it.
    share_before: float = 0.2
    share_after: float = 0.15


@dataclass(frozen=True)
class RepartitionTuning:
    """Solving on two partitions for given stages that recompute."""

    # Share of the time limit for the partition that does not count R's time.
    first_share_of_limit: float = 0.6


RECOMPUTE_TRIALS = RecomputeTrialTuning()
CHOICE_MOVES = ChoiceMovesTuning()
LAYER_SEARCH = LayerSearchTuning()
LAYER_MENU = LayerMenuTuning()
RECOMPUTE_BOUNDS = RecomputeBoundTuning()
CHOICE_PROOF = ChoiceProofTuning()
REPARTITION = RepartitionTuning()
