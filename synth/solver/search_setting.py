"""The facts on which the steps of a search depend."""

from dataclasses import dataclass
from typing import Self

from synth.schedule.model import SMALLEST_BUFFERING
from synth.solver.instance.instance import Instance
from synth.solver.instance.memory_models import relaxed_memory, safe_memory
from synth.solver.options import Part, SolverName
from synth.solver.search_state import SearchState
from synth.solver.tuning import SEARCH


@dataclass(frozen=True)
class SearchSetting:
    """The facts on which the steps depend; none of them changes during a search.

    Attributes:
        without: parts that are left out.
        num_ops: F, B and W of all stage copies.
        holds_several: True if some rank holds several stage copies.
        buffers_matter: True if the memory models only bracket the exact memory.
        proves_in_background: True if bounds have workers of their own.
        uses_milp: True if the exact solver is the mixed-integer program.
        is_within: True if the search serves another one.
    """

    without: frozenset[Part]
    num_ops: int
    holds_several: bool
    buffers_matter: bool
    proves_in_background: bool
    uses_milp: bool
    is_within: bool = False

    @classmethod
    def of(
        cls, state: SearchState, fusion_relaxed: Instance, *, proves_in_background: bool
    ) -> Self:
        """Read the facts off a search that begins."""
        unbuffered = safe_memory(state.problem, SMALLEST_BUFFERING)
        return cls(
            without=state.options.without,
            num_ops=fusion_relaxed.num_ops,
            holds_several=fusion_relaxed.holds_several,
            # A search that serves another one leaves exact memory to that.
            buffers_matter=bool(state.problem.caps_bytes)
            and not state.is_within
            and unbuffered != relaxed_memory(state.problem),
            proves_in_background=proves_in_background,
            uses_milp=state.options.solver == SolverName.MILP,
            is_within=state.is_within,
        )

    def has(self, *parts: Part) -> bool:
        """Return True if none of the parts is left out."""
        return self.without.isdisjoint(parts)

    @property
    def anneals(self) -> bool:
        """True if annealing on exact memory can gain something that models miss."""
        return self.buffers_matter and self.has(Part.ANNEALING)

    @property
    def anneals_most(self) -> bool:
        """True if annealing gets most of the time, because it finds most."""
        return self.anneals and self.holds_several

    @property
    def is_tiny(self) -> bool:
        """True if the exact model gets all the time."""
        return self.num_ops <= SEARCH.exact_alone_ops

    @property
    def is_small(self) -> bool:
        """True if the exact model may find or prove something soon."""
        most_ops = SEARCH.small_ops_of_several if self.holds_several else SEARCH.small_ops
        return self.num_ops <= most_ops

    @property
    def tries_exact(self) -> bool:
        """True if the exact model is tried, at least briefly, before the windows."""
        return self.has(Part.EXACT) and self.num_ops <= SEARCH.exact_brief_ops

    @property
    def is_exact_alone(self) -> bool:
        """True if only the exact model improves on the heuristics."""
        return self.without >= {Part.MODULO, Part.WINDOWS}

    @property
    def is_modulo_alone(self) -> bool:
        """True if only modulo scheduling improves on the schedule that is given."""
        return self.without >= frozenset(Part) - {Part.MODULO}

    @property
    def waits_for_first_bounds(self) -> bool:
        """True if bounds of one rank come before the search; else they begin in the background."""
        return self.is_small or not self.proves_in_background
