"""The search space of placements whose schedules may offload to the host's memory."""

from collections.abc import Sequence
from dataclasses import dataclass

from synth.plan.choose.candidates import Candidate, Ranking, SearchWatch, placements_to_try
from synth.plan.offload.search import search_with_offloads
from synth.plan.runtimes import Allowed
from synth.plan.search_space import OneCandidate, Placements, SearchSpace
from synth.schedule.model import Placement
from synth.schedule.placements import looped
from synth.solver.options import SolveOptions
from synth.solver.problem import Problem


@dataclass(frozen=True)
class WithOffloads(SearchSpace):
    """The candidates of a space under memory limits, with offloads as a choice.

    Attributes:
        space: the placements that are also searched without offloads.
        finer: those on which only schedules with offloads are searched.
    """

    space: OneCandidate | Placements
    finer: tuple[Candidate, ...] = ()

    @property
    def all_candidates(self) -> Sequence[Candidate]:
        """The candidates of the space, then the finer ones."""
        return (*self.space.all_candidates, *self.finer)

    def search(self, options: SolveOptions, watch: SearchWatch) -> Ranking:
        """Search without offloads, then with them; see `search_with_offloads`."""
        return search_with_offloads(self.space, options, watch, self.finer)


def with_offloads_if_asked(
    space: SearchSpace, allowed: Allowed, finer: Sequence[Candidate] = ()
) -> SearchSpace:
    """Return a space in which offloads to the host are a choice, where they are asked for.

    They cost time without a memory limit, and need a link to the host.

    Args:
        space: without offloads.
        allowed: says whether they are asked for.
        finer: see `WithOffloads`.
    """
    if isinstance(space, OneCandidate | Placements) and may_offload(space.problem, allowed):
        return WithOffloads(space, tuple(finer))
    return space


def may_offload(problem: Problem, allowed: Allowed) -> bool:
    """Return True if offloads to the host are asked for, and are of use."""
    has_use = problem.caps_bytes is not None and problem.costs.links.host is not None
    return allowed.offloads and has_use


def finer_placements(num_ranks: int, num_layers: int) -> dict[str, Placement]:
    """Return by name the interleaved placements of more stages than are searched by default.

    Small stages move in small parts, which a slow link takes away sooner.
    """
    known = placements_to_try(num_ranks, num_layers).values()
    found = {
        f"looped:{rounds}": looped(num_ranks, rounds)
        for rounds in range(2, num_layers // num_ranks + 1)
    }
    return {name: where for name, where in found.items() if where not in known}
