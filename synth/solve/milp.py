"""The same problem as a mixed-integer program through PuLP: an independent check of `cpsat`.

Big-M order variables and memory as plain sums; it shares no constraint code with the CP-SAT model,
only its vocabulary. It proves up to about 32 micro-batch passages (ranks · micro-batches).
"""

import warnings
from itertools import combinations

import pulp

from synth.kinds import OpKind
from synth.solve.precedences import Slot
from synth.solve.problem import Objective
from synth.solve.ranks import SPLIT, STEP, B, F, Ranks, W
from synth.solve.run_cpsat import Outcome
from synth.solve.solution import Solution


class _Program:
    """Variables, constraints, objective of the MILP."""

    def __init__(self, ranks: Ranks, objective: Objective, horizon_us: int) -> None:
        self.ranks, self.m = ranks, ranks.num_micro_batches
        self.big_us = horizon_us + ranks.head_us(len(ranks) - 1)
        self.lp = pulp.LpProblem("synth", pulp.LpMinimize)
        self.start: dict[tuple[int, Slot], pulp.LpVariable] = {}
        self.value = pulp.LpVariable("value", 0, horizon_us)
        self.lp += self.value
        for rank in range(len(ranks)):
            self._add_starts(rank)
            self._add_orders(rank)
            self._add_memory(rank)
            self._add_objective(rank, objective)
        for rank in range(len(ranks) - 1):
            self._add_link((rank, F), (rank + 1, F), ranks[rank].down_us)
            self._add_link((rank + 1, B), (rank, B), ranks[rank].up_us)

    def _add_starts(self, rank: int) -> None:
        for kind in SPLIT:
            for k in range(self.m):
                name = f"{kind}_{rank}_{k}"
                self.start[rank, Slot(kind, k)] = pulp.LpVariable(name, 0, self.big_us)
        if rank == 0:
            self.lp += self.start[0, Slot(F, 0)] == 0

    def _end(self, rank: int, slot: Slot) -> pulp.LpAffineExpression:
        return self.start[rank, slot] + self.ranks[rank].duration_us[slot.kind]

    def _add_orders(self, rank: int) -> None:
        """For every two ops of a rank: one ends before the other starts, which one y says."""
        self.before: dict[tuple[Slot, Slot], pulp.LpVariable | int] = {}
        slots = [Slot(kind, k) for kind in SPLIT for k in range(self.m)]
        for a, b in combinations(slots, 2):
            self._add_order(rank, a, b)

    def _add_order(self, rank: int, a: Slot, b: Slot) -> None:
        if a.microbatch <= b.microbatch and a.kind.rank_in_chain <= b.kind.rank_in_chain:
            self.before[a, b], self.before[b, a] = 1, 0
            self.lp += self.start[rank, b] >= self._end(rank, a)
            return
        y = pulp.LpVariable(f"y_{rank}_{a.kind}{a.microbatch}_{b.kind}{b.microbatch}", cat="Binary")
        self.before[a, b], self.before[b, a] = y, 1 - y
        big = self.big_us + max(self.ranks[rank].duration_us.values())
        self.lp += self.start[rank, b] >= self._end(rank, a) - big * (1 - y)
        self.lp += self.start[rank, a] >= self._end(rank, b) - big * y

    def _add_memory(self, rank: int) -> None:
        """What all ops before an op have left, and what it needs itself, fit into the room."""
        costs = self.ranks[rank]
        if costs.room_bytes is None:
            return
        effect = {
            F: costs.live_f_bytes,
            B: costs.live_b_bytes - costs.live_f_bytes,
            W: -costs.live_b_bytes,
        }
        slots = [Slot(kind, k) for kind in SPLIT for k in range(self.m)]
        # Scaled to about 1, because the solver's tolerance is absolute.
        scale = 1 / max(1, costs.room_bytes)
        for slot in slots:
            level = pulp.lpSum(
                effect[other.kind] * scale * self.before[other, slot]
                for other in slots
                if other != slot
            )
            room = (costs.room_bytes - costs.need_bytes[slot.kind]) * scale
            self.lp += level <= room + 1e-9

    def _add_link(self, source: tuple[int, OpKind], target: tuple[int, OpKind], lag: int) -> None:
        """Transfers of one link take turns, in the order of the micro-batches."""
        previous: pulp.LpVariable | None = None
        for k in range(self.m):
            arrival = pulp.LpVariable(f"arrive_{source[1]}_{source[0]}_{k}", 0)
            self.lp += arrival >= self._end(source[0], Slot(source[1], k)) + lag
            if previous is not None:
                self.lp += arrival >= previous + lag
            self.lp += self.start[target[0], Slot(target[1], k)] >= arrival
            previous = arrival

    def _add_objective(self, rank: int, objective: Objective) -> None:
        end = self._end(rank, Slot(W, self.m - 1)) + self.ranks[rank].duration_us[STEP]
        if objective == Objective.PERIOD:
            head = self.ranks.head_us(rank)
            self.lp += self.start[rank, Slot(F, 0)] == head
            end = end - head
        self.lp += self.value >= end


def run_milp(ranks: Ranks, objective: Objective, horizon_us: int, limit_s: float) -> Outcome:
    """Solve with CBC, PuLP's own solver; it proves the optimum or nothing.

    Reads `sol_status`: PuLP calls a solve that ran out of time "Optimal" too.
    """
    with warnings.catch_warnings():
        # PuLP 3.3 announces 4.0's way to make variables, which 2.9 does not have yet.
        warnings.simplefilter("ignore", DeprecationWarning)
        program = _Program(ranks, objective, horizon_us)
        program.lp.solve(pulp.PULP_CBC_CMD(msg=False, timeLimit=limit_s, gapRel=0))
    status = program.lp.sol_status
    found = status in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible)
    optimal = status == pulp.LpSolutionOptimal
    return Outcome(
        round(pulp.value(program.value)) if optimal else 0,
        Solution({key: round(v.value()) for key, v in program.start.items()}) if found else None,
        optimal=optimal,
        infeasible=status == pulp.LpSolutionInfeasible,
    )
