"""Large-neighbourhood search over windows of time: everything outside keeps its order.

    time   | before            | window            | after
    order  | as it is          | free, by CP-SAT   | as it is, after the window's ops on each rank
    memory | unchanged         | precedences       | unchanged: the same ops precede each op

What comes after is a fixed graph, so it enters the window's model only as each op's tail: the
longest way from its end to the end of the schedule. The model stays as small as the window.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from ortools.sat.python import cp_model

from synth.schedule.ops import Op
from synth.solve.precedences import Alternative, Before, Slot, requirements
from synth.solve.problem import Objective
from synth.solve.ranks import SPLIT, STEP, B, F, Ranks, W
from synth.solve.solution import Solution, solution_of

Node = tuple[int, Slot]

# Small windows are solved often, large ones see further; beyond, CP-SAT stalls.
_WINDOW_OPS = (60, 120, 120, 240)
LARGEST_WINDOW = max(_WINDOW_OPS)


@dataclass(frozen=True)
class Effort:
    """How long to search, in steps and CP-SAT's deterministic seconds, so that it can be repeated.

    Attributes:
        rounds: windows at most.
        patience: windows in a row without a better one, after which the search ends.
    """

    rounds: int
    patience: int = 60
    seconds_per_window: float = 0.5


def improve(
    ranks: Ranks,
    objective: Objective,
    solution: Solution,
    effort: Effort,
    seed: int,
    should_stop: Callable[[], bool],
    on_better: Callable[[Solution], None],
) -> Solution:
    """Re-solve windows of a split solution until the effort is spent; never gets worse.

    A window is kept when it is not worse for the whole: moves between equals lead out of dead ends.
    """
    search = _Search(ranks, objective, solution, seed)
    idle = 0
    for _ in range(effort.rounds):
        if idle >= effort.patience or should_stop():
            break
        idle += 1
        if search.round(effort):
            idle = 0
            on_better(search.solution)
    return search.solution


class _Search:
    """The current solution, and what its graph says."""

    def __init__(self, ranks: Ranks, objective: Objective, solution: Solution, seed: int) -> None:
        self.ranks, self.objective, self.m = ranks, objective, ranks.num_micro_batches
        self.rng = random.Random(seed)
        self.required: dict[Node, tuple[Alternative, ...]] = {
            (rank, need.slot): need.alternatives
            for rank, costs in enumerate(ranks.ranks)
            for need in requirements(costs, self.m)
        }
        self._take(solution.programs(len(ranks)))

    def _take(self, programs: tuple[tuple[Op, ...], ...]) -> None:
        """Make orders current, each op as early as its order allows."""
        self.solution = solution_of(programs, self.ranks)
        self.value_us = self.solution.value_us(self.ranks, self.objective)
        starts = self.solution.starts
        self.sequence = sorted(starts, key=lambda n: (starts[n], n[1].kind.rank_in_chain, n))
        self.place = {node: i for i, node in enumerate(self.sequence)}
        self.orders: list[list[Slot]] = [[] for _ in programs]
        for rank, slot in self.sequence:
            self.orders[rank].append(slot)

    def round(self, effort: Effort) -> bool:
        """Re-solve one random window; whether the whole got better."""
        window = self._choose(self.rng.choice(_WINDOW_OPS))
        found = _Window(self, window).solve(effort.seconds_per_window, self.rng.randrange(1 << 30))
        if found is None:
            return False
        programs = found.programs(len(self.ranks))
        value_us = solution_of(programs, self.ranks).value_us(self.ranks, self.objective)
        better = value_us < self.value_us
        if value_us <= self.value_us:
            self._take(programs)
        return better

    def _choose(self, num_ops: int) -> tuple[int, int]:
        """Ops that start around a random moment: a run of the sequence."""
        first = self.rng.randrange(-num_ops // 2, max(1, len(self.sequence) - num_ops // 2))
        return max(0, first), min(len(self.sequence), first + num_ops)


class _Window:
    """The model of one window: constants before it, variables in it and after it."""

    def __init__(self, search: _Search, window: tuple[int, int]) -> None:
        self.search, self.ranks, self.first = search, search.ranks, window[0]
        self.nodes = set(search.sequence[slice(*window)])
        self.cp = cp_model.CpModel()
        self.start: dict[Node, cp_model.IntVar] = {}
        for rank, order in enumerate(search.orders):
            self._add_rank(rank, order)
        self._add_transfers()
        self._minimise()

    def _add_rank(self, rank: int, order: list[Slot]) -> None:
        """Fix what stands before the window, free what is in it, keep the order after it."""
        free = [slot for slot in order if (rank, slot) in self.nodes]
        starts = self.search.solution.starts
        place = self.search.place
        before = [slot for slot in order if place[rank, slot] < self.first]
        after = order[len(before) + len(free) :]
        earliest = self._end_us((rank, before[-1])) if before else 0
        for slot in (*free, *after):
            start = self.cp.new_int_var(earliest, 2 * self.search.value_us, "")
            self.cp.add_hint(start, starts[rank, slot])
            self.start[rank, slot] = start
        self._add_free(rank, free)
        for slot in free:
            if after:
                self._precede(rank, Before(slot, after[0]))
        for slot, following in pairwise(after):
            self._precede(rank, Before(slot, following))

    def _add_free(self, rank: int, free: list[Slot]) -> None:
        """F, B, W in order, each kind in order, one at a time, within memory."""
        durations = self.ranks[rank].duration_us
        self.cp.add_no_overlap(
            self.cp.new_fixed_size_interval_var(self.start[rank, slot], durations[slot.kind], "")
            for slot in free
        )
        for kind, k in free:
            same = [Slot(SPLIT[i], k) for i in range(kind.rank_in_chain + 1, 3)][:1]
            for following in (*same, Slot(kind, k + 1)):
                if (rank, following) in self.nodes:
                    self._precede(rank, Before(Slot(kind, k), following))
            self._add_memory(rank, self.search.required.get((rank, Slot(kind, k)), ()))

    def _add_memory(self, rank: int, alternatives: tuple[Alternative, ...]) -> None:
        """One alternative holds; what lies outside the window is decided already."""
        open_ones = []
        for alternative in alternatives:
            undecided = self._undecided(rank, alternative)
            if undecided == ():
                return
            if undecided is not None:
                open_ones.append(undecided)
        choices = [self.cp.new_bool_var("") for _ in open_ones]
        for choice, alternative in zip(choices, open_ones, strict=True):
            for before in alternative:
                self._precede(rank, before).only_enforce_if(choice)
        if choices:
            self.cp.add_bool_or(choices)

    def _undecided(self, rank: int, alternative: Alternative) -> Alternative | None:
        """What of an alternative the window decides; None if the rest already fails."""
        undecided = []
        place = self.search.place
        for before in alternative:
            ends = ((rank, before.first), (rank, before.second))
            if all(node in self.nodes for node in ends):
                undecided.append(before)
            elif place[ends[0]] > place[ends[1]]:
                return None
        return tuple(undecided)

    def _precede(self, rank: int, before: Before) -> cp_model.Constraint:
        duration = self.ranks[rank].duration_us[before.first.kind]
        start = self.start
        return self.cp.add(start[rank, before.second] >= start[rank, before.first] + duration)

    def _add_transfers(self) -> None:
        """Readers wait for what the neighbouring rank makes."""
        for (rank, slot), start in self.start.items():
            source: Node | None = None
            if slot.kind == F and rank > 0:
                source, lag = (rank - 1, slot), self.ranks[rank - 1].down_us
            elif slot.kind == B and rank + 1 < len(self.ranks):
                source, lag = (rank + 1, slot), self.ranks[rank].up_us
            if source is None:
                continue
            duration = self.ranks[source[0]].duration_us[slot.kind]
            made = self.start.get(source, self.search.solution.starts[source])
            self.cp.add(start >= made + duration + lag)

    def _end_us(self, node: Node) -> int:
        return self.search.solution.starts[node] + self.ranks[node[0]].duration_us[node[1].kind]

    def _minimise(self) -> None:
        """The objective first; among equals, ranks that end early, which gives it a slope."""
        search, last = self.search, Slot(W, self.search.m - 1)
        value = self.cp.new_int_var(0, search.value_us, "")
        ends = []
        for rank, costs in enumerate(self.ranks.ranks):
            if (rank, last) in self.start:
                end = self.start[rank, last] + costs.duration_us[W] + costs.duration_us[STEP]
                origin = self.ranks.head_us(rank) if search.objective == Objective.PERIOD else 0
                self.cp.add(value >= end - origin)
                ends.append(end)
        self.cp.minimize(value * (2 * len(self.ranks)) + sum(ends))

    def solve(self, seconds: float, seed: int) -> Solution | None:
        """The best found for this window, by a deterministic limit."""
        solver = cp_model.CpSolver()
        parameters = solver.parameters
        parameters.num_workers = 1
        parameters.random_seed = seed
        parameters.catch_sigint_signal = False
        parameters.cp_model_probing_level = 0
        parameters.max_deterministic_time = seconds
        if solver.solve(self.cp) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return None
        starts = dict(self.search.solution.starts)
        starts.update({node: solver.value(start) for node, start in self.start.items()})
        return Solution(starts)
