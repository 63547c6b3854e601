"""The search space of placements whose schedules may offload to the host's memory."""

from collections.abc import Sequence
from dataclasses import dataclass

from synth.plan.choose.candidates import Candidate, Ranking, SearchWatch
from synth.plan.offload.search import search_with_offloads
from synth.plan.runtimes import Allowed
from synth.plan.search_space import OneCandidate, Placements, SearchSpace
from synth.solver.options import SolveOptions


@dataclass(frozen=True)
class WithOffloads(SearchSpace):
    """The candidates of a space under memory limits, with offloads as a choice."""

    space: OneCandidate | Placements

    @property
    def all_candidates(self) -> Sequence[Candidate]:
        """The candidates of the space."""
        return self.space.all_candidates

    def search(self, options: SolveOptions, watch: SearchWatch) -> Ranking:
        """Search without offloads, then with them; see `search_with_offloads`."""
        return search_with_offloads(self.space, options, watch)


def with_offloads_if_asked(space: SearchSpace, allowed: Allowed) -> SearchSpace:
    """Return a space in which offloads to the host are a choice, where they are asked for.

    They cost time without a memory limit, and need a link to the host.
    """
    problem = space.problem
    has_use = problem.caps_bytes is not None and problem.costs.links.host is not None
    if isinstance(space, OneCandidate | Placements) and allowed.offloads and has_use:
        return WithOffloads(space)
    return space
