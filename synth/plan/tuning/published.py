"""Constants of the search for the best cut of a published schedule."""

from dataclasses import dataclass


@dataclass(frozen=True)
class PublishedTuning:
    """The cut and the recomputed layers of a published schedule, found by simulation."""

    # Cuts that local search simulates besides the candidates, in all and in a row without success.
    neighbours: int = 32
    neighbours_in_vain: int = 12
    # Cuts on which a family that reads times is made anew; each takes up to a second.
    made_anew: int = 3
    # Every n-th layer recomputed: the n that are tried.
    every_nth: tuple[int, ...] = (8, 6, 5, 4, 3, 2)
    # Cuts on which recomputed layers are tried: the fastest ones, and those of least memory.
    fastest_cuts: int = 2
    smallest_cuts: int = 1
    # Profiles with recomputed layers whose costs are kept.
    tables: int = 64


PUBLISHED = PublishedTuning()
