"""Sets of ranks to model exactly, and the order in which they are tried.

The models are in `rank_subsets`.
"""

from collections.abc import Iterable, Sequence

from synth.objective import Objective
from synth.solver.bounds.closed_form import rank_bounds
from synth.solver.bounds.destructive import Ranks
from synth.solver.bounds.forward_spacing import far_apart
from synth.solver.bounds.forward_spacing_model import Spacings
from synth.solver.instance.instance import SPLIT, Instance
from synth.solver.tuning import RANK_SUBSETS


def num_ops(instance: Instance, ranks: Ranks) -> int:
    """Return the ops of some ranks."""
    copies = (instance[index] for rank in ranks for index in instance.held[rank])
    return sum(len(SPLIT) * copy.num_micro_batches for copy in copies)


def is_worth_alone(instance: Instance) -> bool:
    """Return True if the model of each rank alone has few enough ops to prove much soon."""
    return all(
        num_ops(instance, (rank,)) <= RANK_SUBSETS.most_ops_alone
        for rank in range(instance.num_ranks)
    )


def by_promise(instance: Instance, objective: Objective) -> Sequence[int]:
    """Return the ranks, those that may prove most first.

    Where they hold one stage and limits are alike, rank 0 waits longest for its first B, so
    memory binds there first. Where they hold several, the closed forms tell.
    """
    ranks = range(instance.num_ranks)
    if not instance.holds_several:
        return ranks
    closed_us = [objective.value_us(spans) for spans in rank_bounds(instance)]
    return sorted(ranks, key=lambda rank: -closed_us[rank])


def least_sets(instance: Instance, ranks: Iterable[int]) -> list[Ranks]:
    """Return each rank alone or, if it holds two copies of the model, all with its stages.

    Alone as well if all ranks hold the same stages: the model of all comes last anyway.
    Where there are two copies, a micro-batch of one waits for the memory that one of the other
    holds, on both ranks of a stage, and what it waits for on one delays it on the other.
    """
    held = [[instance[index] for index in those] for those in instance.held]
    stages_of = [{copy.stage for copy in copies} for copies in held]
    has_copies = [len({copy.replica for copy in copies}) > 1 for copies in held]
    sets: list[Ranks] = []
    for rank in ranks:
        same = [other for other, stages in enumerate(stages_of) if stages & stages_of[rank]]
        is_alone = not has_copies[rank] or len(same) == instance.num_ranks
        sets.append((rank,) if is_alone else tuple(same))
    return list(dict.fromkeys(sets))


def wider(instance: Instance, chosen: Ranks, spacings: Spacings) -> list[Ranks]:
    """Return the sets to try after the chosen one; empty after the set of all ranks."""
    ranks = range(instance.num_ranks)
    others = [rank for rank in ranks if rank not in chosen]
    sets: list[Ranks] = []
    if spacings.say_more and len(chosen) < RANK_SUBSETS.few_ranks:
        far = far_apart(instance, len(chosen) + 1)
        if len(far) > len(chosen):
            sets = [far]
            if not instance.holds_several:
                return sets
    if len(chosen) < RANK_SUBSETS.few_ranks:
        further = _spread(
            others,
            RANK_SUBSETS.second_rank_trials
            if len(chosen) == 1
            else RANK_SUBSETS.further_rank_trials,
        )
        sets += [tuple(sorted((*chosen, rank))) for rank in further]
        return list(dict.fromkeys(sets))
    if others and instance.num_ops <= RANK_SUBSETS.most_ops:
        return [tuple(ranks)]
    sets = [
        tuple(sorted((*chosen, rank))) for rank in _spread(others, RANK_SUBSETS.further_rank_trials)
    ]
    return [ranks for ranks in sets if num_ops(instance, ranks) <= RANK_SUBSETS.most_ops]


def _spread(ranks: list[int], most: int) -> list[int]:
    """Return a few of the ranks, far apart."""
    size = min(len(ranks), most)
    return [ranks[(2 * i + 1) * len(ranks) // (2 * size)] for i in range(size)]
