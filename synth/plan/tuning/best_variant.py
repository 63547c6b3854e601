"""Constants of the search for the best cut of a published schedule."""

from dataclasses import dataclass


@dataclass(frozen=True)
class BestVariantTuning:
    """The cut and the recomputed layers of a published schedule, found by simulation."""

    # Share of the time for all published schedules after which the rest have their first cut.
    share_of_limit: float = 0.4
    # Ops as which a variant counts at least, when those are counted that are judged in any case.
    least_ops: int = 1000
    # Cuts that local search judges besides the candidates, in all and in a row without success;
    # as long as none fits only their memory is computed, so more of them are judged.
    neighbours: int = 32
    neighbours_in_vain: int = 12
    unfit_neighbours: int = 64
    unfit_neighbours_in_vain: int = 24
    # Candidates on ranks of unequal speed: the balanced cut, and those near it.
    cuts_of_unequal_ranks: int = 6
    # Cuts on which a family that reads times is made anew; each takes up to a second.
    made_anew: int = 2
    # Rules for recomputed layers with which it is made anew if its order fits with none of them.
    made_with_rules: int = 3
    # Every n-th layer recomputed: the n that are tried.
    every_nth: tuple[int, ...] = (8, 6, 5, 4, 3, 2)
    # Cuts on which recomputed layers are tried: the fastest ones, and those of least memory.
    fastest_cuts: int = 2
    smallest_cuts: int = 1
    # Neighbours of the best cut with recomputed layers on which all rules are tried, too.
    neighbours_with_rules: int = 6
    # Profiles with recomputed layers whose costs are kept.
    tables: int = 64

    def efforts(self, *, fits: bool) -> tuple[int, int]:
        """Return the neighbours judged in all and in a row without success."""
        if fits:
            return self.neighbours, self.neighbours_in_vain
        return self.unfit_neighbours, self.unfit_neighbours_in_vain


BEST_VARIANT = BestVariantTuning()
