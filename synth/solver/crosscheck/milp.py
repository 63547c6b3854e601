"""The same problem as a mixed-integer program through PuLP: an independent check of `cpsat.model`.

Order is by big-M variables and memory by plain sums. It shares the terms of the CP-SAT model, but
no constraint code. It proves up to about 32 passages of micro-batches (ranks · micro-batches).
"""

import warnings
from collections.abc import Iterator
from itertools import combinations

import pulp

from synth.objective import Objective
from synth.solver.cpsat.run import ModelOutcome
from synth.solver.instance.instance import STEP, B, F, Instance, Node, OpIndex, W
from synth.solver.instance.timing import TimedOrders


class _Program:
    """Variables, constraints, objective of the MILP."""

    def __init__(self, instance: Instance, objective: Objective, horizon_us: int) -> None:
        self.instance = instance
        self.big_us = 2 * instance.longest_us(objective, horizon_us) + max(instance.head_us)
        self.lp = pulp.LpProblem("synth", pulp.LpMinimize)
        self.start: dict[Node, pulp.LpVariable] = {}
        self.before: dict[tuple[Node, Node], pulp.LpVariable | int] = {}
        self.makespan = pulp.LpVariable("makespan", 0)
        self.period = pulp.LpVariable("period", 0)
        self.value = objective.makespans * self.makespan + objective.periods * self.period
        self.lp += self.value
        self.lp += self.value <= horizon_us
        for copy in range(len(instance)):
            for op_index in instance.op_indices(copy):
                name = f"{op_index.kind}_{copy}_{op_index.microbatch}"
                self.start[copy, op_index] = pulp.LpVariable(name, 0, self.big_us)
        self._add_reductions()
        for rank in range(instance.num_ranks):
            self._add_orders(rank)
            self._add_memory(rank)
            self._add_makespan(rank)
            if objective.periods:
                self._add_period(rank)
        self._add_links()

    def _end(self, node: Node) -> pulp.LpAffineExpression:
        return self.start[node] + self.instance[node[0]].duration_us[node[1].kind]

    def _nodes(self, rank: int) -> list[Node]:
        """Return all ops of a rank."""
        instance = self.instance
        return [
            (copy, op_index)
            for copy in instance.held[rank]
            for op_index in instance.op_indices(copy)
        ]

    def _add_orders(self, rank: int) -> None:
        """Of any two ops of a rank one ends before the other starts; a binary variable chooses."""
        for a, b in combinations(self._nodes(rank), 2):
            self._add_order(a, b)

    def _add_order(self, a: Node, b: Node) -> None:
        follows = a[1].microbatch <= b[1].microbatch
        if a[0] == b[0] and follows and a[1].kind.rank_in_chain <= b[1].kind.rank_in_chain:
            self.before[a, b], self.before[b, a] = 1, 0
            self.lp += self.start[b] >= self._end(a)
            return
        y = pulp.LpVariable(f"y_{self.start[a].name}_{self.start[b].name}", cat="Binary")
        self.before[a, b], self.before[b, a] = y, 1 - y
        big = self.big_us + max(max(copy.duration_us.values()) for copy in self.instance.copies)
        self.lp += self.start[b] >= self._end(a) - big * (1 - y)
        self.lp += self.start[a] >= self._end(b) - big * y

    def _add_memory(self, rank: int) -> None:
        """The deltas of all ops before an op, and its own peak, keep within the headroom."""
        headroom = self.instance.headroom_bytes[rank]
        if headroom is None:
            return
        nodes = self._nodes(rank)
        # Scaled to about 1, because the solver's tolerance is absolute.
        scale = 1 / max(1, headroom)
        for node in nodes:
            usage = pulp.lpSum(
                self.instance[other[0]].delta_bytes[other[1].kind]
                * scale
                * self.before[other, node]
                for other in nodes
                if other != node
            )
            peak_above = self.instance[node[0]].peak_above_bytes[node[1].kind]
            self.lp += usage <= (headroom - peak_above) * scale + 1e-9

    def _add_links(self) -> None:
        """A link serves one transfer at a time."""
        links: dict[tuple[int, int], list[tuple[pulp.LpVariable, int]]] = {}
        for index, copy in enumerate(self.instance.copies):
            if copy.below is None:
                for k in range(copy.num_micro_batches):
                    self.lp += self.start[index, OpIndex(B, k)] >= self._end((index, OpIndex(F, k)))
                continue
            below = copy.below
            for kind, source, target, lag in (
                (F, index, below, copy.down_us),
                (B, below, index, copy.up_us),
            ):
                ends = (self.instance[source].rank, self.instance[target].rank)
                turns = links.setdefault(ends, [])
                for k in range(copy.num_micro_batches):
                    arrival = pulp.LpVariable(f"arrive_{kind}_{source}_{k}", 0)
                    self.lp += arrival >= self._end((source, OpIndex(kind, k))) + lag
                    self.lp += self.start[target, OpIndex(kind, k)] >= arrival
                    if ends[0] != ends[1]:
                        turns.append((arrival, lag))
        for turns in links.values():
            for (a, a_lag), (b, b_lag) in combinations(turns, 2):
                y = pulp.LpVariable(f"turn_{a.name}_{b.name}", cat="Binary")
                big = 2 * self.big_us
                self.lp += b >= a + b_lag - big * (1 - y)
                self.lp += a >= b + a_lag - big * y

    def _add_makespan(self, rank: int) -> None:
        for end in self._ends(rank):
            self.lp += self.makespan >= end

    def _add_period(self, rank: int) -> None:
        instance, held = self.instance, self.instance.held[rank]
        origin = pulp.LpVariable(f"origin_{rank}", 0)
        if instance.origins_us is not None:
            self.lp += origin == instance.origins_us[rank]
            self.lp += self.start[held[0], OpIndex(F, 0)] == instance.origins_us[rank]
        for index in held:
            self.lp += origin <= self.start[index, OpIndex(F, 0)]
        for end in self._ends(rank):
            self.lp += self.period >= end - origin

    def _ends(self, rank: int) -> Iterator[pulp.LpAffineExpression]:
        """Yield the ends of a rank: STEPs come last, in order, each after its own reduction."""
        instance, held = self.instance, self.instance.held[rank]
        for place, index in enumerate(held):
            copy = instance[index]
            yield self._end((index, OpIndex(W, copy.last))) + instance.step_us(rank)
            reduced = self.reduced.get(copy.stage)
            if reduced is not None:
                yield reduced + sum(instance[c].duration_us[STEP] for c in held[place:])

    def _add_reductions(self) -> None:
        """Reduce the gradients of a stage's copies, one reduction at a time per set of ranks."""
        self.reduced: dict[int, pulp.LpVariable] = {}
        instance = self.instance
        for stages in instance.reductions.values():
            for stage in stages:
                self.reduced[stage] = end = pulp.LpVariable(f"reduced_{stage}", 0)
                for copy in instance.copies_of(stage):
                    last = self._end((copy, OpIndex(W, instance[copy].last)))
                    self.lp += end >= last + instance[copy].reduce_us
            for a, b in combinations(stages, 2):
                y = pulp.LpVariable(f"turn_{a}_{b}", cat="Binary")
                big = 2 * self.big_us
                times = {
                    stage: instance[instance.copies_of(stage)[0]].reduce_us for stage in (a, b)
                }
                self.lp += self.reduced[b] >= self.reduced[a] + times[b] - big * (1 - y)
                self.lp += self.reduced[a] >= self.reduced[b] + times[a] - big * y


def run_milp(
    instance: Instance, objective: Objective, horizon_us: int, limit_s: float
) -> ModelOutcome:
    """Solve with CBC, PuLP's own solver, which proves the optimum or nothing.

    `sol_status` is read because PuLP calls a solve that ran out of time "Optimal" too.
    """
    with warnings.catch_warnings():
        # PuLP 3.3 deprecates this way to make variables, but 2.9 does not have the new one.
        warnings.simplefilter("ignore", DeprecationWarning)
        program = _Program(instance, objective, horizon_us)
        program.lp.solve(pulp.PULP_CBC_CMD(msg=False, timeLimit=limit_s, gapRel=0))
    status = program.lp.sol_status
    found = status in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible)
    optimal = status == pulp.LpSolutionOptimal
    return ModelOutcome(
        round(pulp.value(program.value)) if optimal else 0,
        TimedOrders({key: round(v.value()) for key, v in program.start.items()}) if found else None,
        optimal=optimal,
        infeasible=status == pulp.LpSolutionInfeasible,
    )
