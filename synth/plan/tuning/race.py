"""Constants of the race of placements and partitions."""

from dataclasses import dataclass


@dataclass(frozen=True)
class RaceTuning:
    """Timed trials of placements and partitions."""

    # Shares of the remaining time: for a trial of every candidate worth one, then for one of the
    # best few.
    first_share_of_left: float = 0.3
    second_share_of_left: float = 0.4
    # Multiple of the best value up to which a candidate is worth a trial of the first round, or its
    # partitions are searched.
    trial_factor: float = 1.15
    # Candidates in the second round, and placements whose partitions are searched.
    few: int = 3
    # Multiple of the best value up to which a candidate is near it.
    near_factor: float = 1.03
    # Share of the others' gap below which the best trial's gap is small.
    own_gap_share: float = 0.5
    # Share of the time limit that must remain for another trial to begin.
    least_share_of_limit: float = 0.02
    # Least time of a trial of the first round, in seconds per op of the first candidate.
    trial_s_per_op: float = 200e-6
    # Shorter trials skip the published schedules if there is a schedule already; the second value
    # is for each op.
    least_for_families_s: float = 2.0
    families_s_per_op: float = 1e-3
    # Share of the remaining time for the best partitions of published schedules, and ops that are
    # simulated for them even if it is over.
    published_cuts_share_of_left: float = 0.2
    # The same share for a single placement with several stages per rank, whose cut matters most.
    many_cuts_share_of_left: float = 0.4
    published_cuts_least_ops: int = 100_000
    # Share of the remaining time for published schedules on the candidate partitions of a single
    # placement, so that the answer is above none of them.
    candidate_cuts_share_of_left: float = 0.8
    # Share of the remaining time for published schedules made for lower memory limits.
    lower_limits_share_of_left: float = 0.15
    # Lower memory limits at which the race is run as well lie at this ratio to each other, and at
    # most at this share of the limit; the share of the remaining time for it.
    less_memory_ratio: float = 2**0.25
    less_memory_most_share: float = 0.95
    less_memory_share_of_left: float = 0.35
    # Share of the limit for published schedules whose F and BW run at once, before all others.
    pairs_share_of_limit: float = 0.2
    # Share of the remaining time for a search for partitions, before the rounds; the second value
    # is for bounds over all partitions, which also tell where the best ones are.
    partitions_share_of_left: float = 0.15
    bounded_partitions_share_of_left: float = 0.3
    # Share of the remaining time for the bound over all partitions, once a good value is known.
    bounds_share_of_left: float = 0.3
    # Share of the remaining time for further partitions: after the rounds, and again when the
    # trials near the best are over or account for little of the gap.
    further_share_of_left: float = 0.25


@dataclass(frozen=True)
class ListTrialTuning:
    """List schedules on the cuts of the least bounds, before partitions are searched."""

    # Share of the remaining time for them; the others are for many cuts that are annealed, of one
    # placement and of several.
    share_of_left: float = 0.1
    share_of_left_of_one: float = 0.2
    share_of_left_of_several: float = 0.2
    # Cuts of each placement, and priority rules on each.
    cuts: int = 3
    rules: int = 12
    # Orders from release dates on each of them, at most: those of few ops soon repeat.
    dated_orders: int = 4_000
    # Rules on each of the best partitions of one stage per rank, most of them changed step by step.
    changed_rules: int = 40
    # Cuts of a single placement whose partition is searched without bounds over all.
    cuts_of_one: int = 12
    # Share of the time for list schedules that the search for the cut of the least bound takes.
    least_bound_share: float = 0.25
    # Last cuts of that search which are tried, those but the last only where the list schedule of
    # the one behind takes this many times its bound.
    descended_cuts: int = 3
    loose_factor: float = 1.4
    # Of several placements that are annealed: the factor below, and by round, how many placements
    # and cuts of each.
    far_factor_of_several: float = 1.5
    rounds_of_several: tuple[tuple[int, int], ...] = ((100, 4), (5, 6), (3, 8))
    # Rules on each cut before annealing, by their places among the variants: those with the limits
    # of round trips. Orders that are evaluated, until one fits.
    rules_of_several: tuple[int, ...] = (4, 5, 16, 17, 52, 53, 106, 107)
    evaluated: int = 6
    # Bufferings on each cut before annealing, by their places: the default and the largest.
    bufferings_of_several: tuple[int, ...] = (0, 3)
    # Share of the usual effort from release dates for every cut, and the best cuts, which get all.
    brief_share: float = 0.3
    thorough_cuts: int = 4
    # Multiple of the best value from which an order there is not worth its evaluation.
    far_factor: float = 1.25
    # Ops placed per second as a deterministic search counts them.
    ops_per_s: int = 100_000


@dataclass(frozen=True)
class PartitionTrialTuning:
    """Search for partitions that get a trial."""

    # Share of the time of the search for proofs.
    proofs_share: float = 0.6
    # Partitions that get a trial, including the first one: of a single placement, and of each of
    # several.
    partitions_of_one: int = 3
    partitions_of_each: int = 2


@dataclass(frozen=True)
class CutHalvingTuning:
    """Annealing of many cuts of one placement, before one of them is searched."""

    # Share of the remaining time.
    share_of_left: float = 0.5
    # Cuts that get building blocks where there is no time for rungs.
    cuts_of_blocks: int = 4
    # Cuts in each rung.
    rungs: tuple[int, ...] = (8, 4, 2)
    # The same of several placements, and the share of them that one placement may have.
    rungs_of_several: tuple[int, ...] = (10, 4, 2)
    most_share_of_each: float = 0.5
    near_factor_of_several: float = 1.5
    # Share of the way from a value to its bound at which its result is estimated.
    estimate_share: float = 0.5
    # Share of the remaining time, of several placements.
    share_of_left_of_several: float = 0.6
    # Shares of the remaining time for published schedules on further cuts, of placements near the
    # best one and of the others: on the candidates, and again for a search from them.
    published_shares_of_left: tuple[float, float] = (0.12, 0.06)
    # Multiple of the best value up to which a cut takes part.
    near_factor: float = 1.25
    # Rounds of the last rung, as in the long rounds of annealing.
    long_rounds: tuple[tuple[float, float], ...] = ((1.0, 0.5),)


@dataclass(frozen=True)
class CutMovesTuning:
    """Moves of layers across stage boundaries under the best order found."""

    # Share of the remaining time, after each search for an order.
    share_of_left: float = 0.15
    # Cuts judged in a row without success that end the moves.
    in_vain: int = 24
    # Share of the remaining time for the next search for an order, as long as moves succeed.
    search_share_of_left: float = 0.4
    # Ops judged per second as a deterministic search counts them.
    ops_per_s: int = 100_000


RACE = RaceTuning()
CUT_MOVES = CutMovesTuning()
CUT_HALVING = CutHalvingTuning()
LIST_TRIALS = ListTrialTuning()
PARTITION_TRIALS = PartitionTrialTuning()
