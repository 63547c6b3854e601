"""All schedules of a small problem with all-gathers, as a model for CP-SAT.

All ranks run one program (the lemma of `equal_ranks`), so one rank and one channel of collectives
are modelled.

    slot t        the place of the t-th op that takes time; STEPs come last, unused slots follow
    boundary t    the place before slot t, at which visits open and gradients are reduced
    window        the ops after a REDUCE_GRAD during which its gradient is held: the `send_behind`
                  of the schedule, which the model chooses

Memory is counted by slots, as lowering counts it, and does not depend on times. F's, backwards and
W's of a stage are in the order of micro-batches (the FIFO lemma of `compute_order`). Each visit has
its own all-gather; a visit that continues from slot to slot needs no further one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise, product
from typing import NamedTuple, TypeAlias

from synth.op_kinds import OpKind
from synth.schedule.lowering.effects import Effects
from synth.schedule.ops import Op
from synth.schedule.sharded_pipelines import sharded_costs
from synth.schedule.weight_flow import Sharded
from synth.solver.cpsat.or_tools import cp_model
from synth.solver.weight_passing.gather_lifetimes import Sums, find_lives, sum_of
from synth.solver.weight_passing.problem import WeightPassingProblem

F, B, W, BW, STEP = OpKind.F, OpKind.B, OpKind.W, OpKind.BW, OpKind.STEP
UNSHARD, REDUCE = OpKind.UNSHARD, OpKind.REDUCE_GRAD

_Literals: TypeAlias = "list[cp_model.IntVar]"


def num_slots(passing: WeightPassingProblem) -> int:
    """The number of slots: F, B and W of each micro-batch of a rank, and the STEPs."""
    num_stages = len(passing.stages)
    return num_stages * (3 * passing.rounds + 1)


class _Collective(NamedTuple):
    """An all-gather or a reduce-scatter at a boundary, if `is_there`."""

    kind: OpKind
    stage: int
    boundary: int
    is_there: cp_model.IntVar
    start: cp_model.IntVar
    end: cp_model.IntVar
    interval: cp_model.IntervalVar


class GatherModel:
    """The model of a problem for one kind of sharded state; `cp` minimises the makespan."""

    def __init__(self, passing: WeightPassingProblem, sharded: Sharded, most_us: int) -> None:
        """Make the model.

        Args:
            sharded: the state that homes alone keep.
            most_us: the longest makespan that counts.
        """
        self.passing, self.sharded, self.most_us = passing, sharded, most_us
        self.cp = cp_model.CpModel()
        self.slots = range(num_slots(passing))
        stages, rounds = range(len(passing.stages)), range(passing.rounds)
        self.stages, self.cells = stages, list(product(stages, rounds))
        ops = [Op(kind, s, g) for kind in (F, B, W, BW) for s, g in self.cells]
        ops += [Op(STEP, s) for s in stages]
        self.at: dict[Op, _Literals] = {op: self._literals(str(op)) for op in ops}
        self.split = {cell: self.cp.new_bool_var(f"split {cell}") for cell in self.cells}
        self.start = [self.cp.new_int_var(0, most_us, f"start {t}") for t in self.slots]
        self.makespan = self.cp.new_int_var(0, most_us, "makespan")
        self.window_beyond = self._literals("window beyond")
        self.held_at: list[list[cp_model.LinearExpr]] = [[] for _ in self.slots]
        self.waiting_at: list[list[cp_model.LinearExpr]] = [[] for _ in self.slots]
        self._add_slots()
        self._add_order()
        self._add_times()
        self.gathers = self._add_visits()
        self.scatters = self._add_reductions()
        self._add_channel([*self.gathers, *self.scatters])
        self._add_memory()
        self.cp.minimize(self.makespan)

    def _literals(self, name: str) -> _Literals:
        return [self.cp.new_bool_var(f"{name} {t}") for t in self.slots]

    def _duration_us(self, op: Op) -> int:
        if op.kind == STEP:
            return self.passing.step_us(op.stage)
        return self.passing.stages[op.stage].duration_us[op.kind]

    # Slots

    def _add_slots(self) -> None:
        """Give every op that is used one slot, the used slots first."""
        cp = self.cp
        for op, at in self.at.items():
            split = self.split.get(op[1:3])
            count = 1 if op.kind in (F, STEP) or split is None else split
            cp.add(sum_of(at) == (1 - count if op.kind == BW else count))
        used = [sum_of(at[t] for at in self.at.values()) for t in self.slots]
        for t in self.slots:
            cp.add(used[t] <= 1)
        for before, after in pairwise(used):
            cp.add(before >= after)
        for before, after in pairwise(self.window_beyond):
            cp.add_implication(after, before)

    def back(self, cell: tuple[int, int]) -> Sums:
        """By slot, 1 if the backward of a stage and micro-batch stands there, B or BW."""
        return [self.at[Op(B, *cell)][t] + self.at[Op(BW, *cell)][t] for t in self.slots]

    def adds(self, cell: tuple[int, int]) -> Sums:
        """By slot, 1 if a W or BW stands there."""
        return [self.at[Op(W, *cell)][t] + self.at[Op(BW, *cell)][t] for t in self.slots]

    def _add_order(self) -> None:
        for g in range(self.passing.rounds):
            chain: list[Sums] = [self.at[Op(F, s, g)] for s in self.stages]
            chain += [self.back((s, g)) for s in reversed(self.stages)]
            for before, after in pairwise(chain):
                self._precede(before, after)
        for cell in self.cells:
            self._precede(self.at[Op(B, *cell)], self.at[Op(W, *cell)])
            for s in self.stages:
                self._precede(self.adds(cell), self.at[Op(STEP, s)])
        for s, g in self.cells:
            for later in range(g + 1, self.passing.rounds):
                self._precede(self.at[Op(W, s, g)], self.at[Op(W, s, later)], self.split[s, g])
            if g + 1 < self.passing.rounds:
                self._precede(self.at[Op(F, s, g)], self.at[Op(F, s, g + 1)])
                self._precede(self.back((s, g)), self.back((s, g + 1)))

    def _precede(self, before: Sums, after: Sums, only_if: cp_model.LinearExpr | int = 1) -> None:
        """Place one op before another; both are given by slot."""
        for t in self.slots:
            self.cp.add(sum_of(before[:t]) >= sum_of(after[: t + 1]) - (1 - only_if))

    def _add_times(self) -> None:
        cp = self.cp
        self.ends: Sums = [
            self.start[t] + sum_of(self._duration_us(op) * at[t] for op, at in self.at.items())
            for t in self.slots
        ]
        for t in self.slots[1:]:
            cp.add(self.start[t] >= self.ends[t - 1])
        for s in self.stages:
            for t, here in enumerate(self.at[Op(STEP, s)]):
                cp.add(self.makespan >= self.ends[t]).only_enforce_if(here)

    # Visits

    def _add_visits(self) -> list[_Collective]:
        """Keep a stage's weights on the rank while ops read them; an all-gather begins a visit."""
        cp, found = self.cp, []
        for s in self.stages:
            opens, reads = self._literals(f"opens {s}"), self._literals(f"reads {s}")
            readers = [at for op, at in self.at.items() if op.stage == s and op.kind in (F, B, BW)]
            for t in self.slots:
                cp.add(sum_of(at[t] for at in readers) == reads[t])
            if self.sharded == Sharded.WEIGHTS:
                self._hold_weights(s, opens, reads)
            else:
                cp.add(sum_of(opens) == 1)
                for t in self.slots:
                    cp.add(sum_of(opens[: t + 1]) >= reads[t])
            gathers = [
                self._collective(UNSHARD, s, t, opens[t], self.passing.gather_us(s))
                for t in self.slots
            ]
            for t in self.slots:
                for gather in gathers[: t + 1]:
                    wait = cp.add(self.start[t] >= gather.end)
                    wait.only_enforce_if(gather.is_there, reads[t])
            found += gathers
        return found

    def _hold_weights(self, stage: int, opens: _Literals, reads: _Literals) -> None:
        cp, holds = self.cp, self._literals(f"holds {stage}")
        num_bytes = self.passing.stages[stage].parameter_bytes
        for t in self.slots:
            cp.add_implication(reads[t], holds[t])
            cp.add_implication(opens[t], holds[t])
            before = holds[t - 1] if t else 0
            cp.add(opens[t] >= holds[t] - before)
            cp.add(opens[t] <= 1 - before)
            self.held_at[t].append(num_bytes * holds[t])
            self.waiting_at[t].append(num_bytes * holds[t])

    # Gradients

    def _add_reductions(self) -> list[_Collective]:
        """Accumulate gradients from a first W or BW on, until a REDUCE_GRAD."""
        cp, found = self.cp, []
        is_step = [sum_of(self.at[Op(STEP, s)][t] for s in self.stages) for t in self.slots]
        for s in self.stages:
            reduces, opens = self._literals(f"reduces {s}"), self._literals(f"accumulates {s}")
            own = [cell for cell in self.cells if cell[0] == s]
            adds = [sum_of(self.adds(cell)[t] for cell in own) for t in self.slots]
            cp.add(reduces[0] == 0)
            if self.sharded == Sharded.OPTIMIZER:
                cp.add(sum_of(reduces) == 1)
            for t in self.slots:
                before = opens[t - 1] if t else 0
                cp.add(opens[t] >= adds[t])
                cp.add(opens[t] >= before - reduces[t])
                cp.add(opens[t] <= adds[t] + before)
                cp.add(opens[t] <= adds[t] + 1 - reduces[t])
                cp.add(reduces[t] <= before)
                cp.add(opens[t] + is_step[t] <= 1)
            scatters = [
                self._collective(REDUCE, s, t, reduces[t], self.passing.scatter_us(s))
                for t in self.slots
            ]
            self._await_scatters(s, scatters)
            if self.sharded != Sharded.OPTIMIZER:
                self._hold_gradients(s, opens, reduces)
            found += scatters
        return found

    def _await_scatters(self, stage: int, scatters: Sequence[_Collective]) -> None:
        """Let STEP wait for a stage's reduce-scatters, and so the first op after a window."""
        cp = self.cp
        for scatter in scatters:
            for t in self.slots[scatter.boundary :]:
                wait = cp.add(self.start[t] >= scatter.end)
                wait.only_enforce_if(scatter.is_there, self.at[Op(STEP, stage)][t])
                beyond = self.window_beyond[t - scatter.boundary]
                wait = cp.add(self.start[t] >= scatter.end)
                wait.only_enforce_if(scatter.is_there, ~beyond)

    def _hold_gradients(self, stage: int, opens: _Literals, reduces: _Literals) -> None:
        cp, num_bytes = self.cp, self.passing.stages[stage].gradient_bytes
        for t in self.slots:
            self.held_at[t].append(num_bytes * opens[t])
            if not t:
                continue
            remains = cp.new_bool_var("")  # while the buffers of the slot are allocated
            cp.add(remains >= opens[t - 1] - reduces[t])
            self.waiting_at[t].append(num_bytes * remains)
            for j in range(t + 1):
                in_window = self._both(reduces[t - j], self.window_beyond[j])
                self.held_at[t].append(num_bytes * in_window)
                # A sum that the op's reduction frees is there while the op's buffers are allocated.
                still = self._both(reduces[t - j], self.window_beyond[j - 1]) if j else reduces[t]
                self.waiting_at[t].append(num_bytes * still)

    def _both(self, one: cp_model.IntVar, other: cp_model.IntVar) -> cp_model.IntVar:
        found = self.cp.new_bool_var("")
        self.cp.add(found >= one + other - 1)
        return found

    # The channel

    def _collective(
        self, kind: OpKind, stage: int, t: int, is_there: cp_model.IntVar, us: int
    ) -> _Collective:
        start = self.cp.new_int_var(0, self.most_us, "")
        end = self.cp.new_int_var(0, self.most_us, "")
        interval = self.cp.new_optional_interval_var(start, us, end, is_there, "")
        return _Collective(kind, stage, t, is_there, start, end, interval)

    def _add_channel(self, collectives: Sequence[_Collective]) -> None:
        """Let collectives run one after another, in the order of boundaries."""
        cp = self.cp
        cp.add_no_overlap([one.interval for one in collectives])
        free = [cp.new_int_var(0, self.most_us, f"free {t}") for t in self.slots]
        for before, after in pairwise(free):
            cp.add(after >= before)
        for one in collectives:
            cp.add(free[one.boundary] >= one.end).only_enforce_if(one.is_there)
            if one.boundary:
                earliest = free[one.boundary - 1], self.ends[one.boundary - 1]
                for bound in earliest:
                    cp.add(one.start >= bound).only_enforce_if(one.is_there)

    # Memory

    def _add_memory(self) -> None:
        headrooms = self.passing.headrooms(self.sharded)
        if headrooms is None:
            return
        effects = Effects(
            sharded_costs(self.passing.problem.costs, self.sharded), self.passing.rounds
        )
        alive_at = [list[cp_model.LinearExpr]() for _ in self.slots]
        for value, maker, readers in find_lives(effects, self.cells, self.at, self.split):
            num_bytes = effects.bytes_of(value)
            for t in self.slots:
                alive = self.cp.new_bool_var("")
                for reader, is_there in readers:
                    gone = sum_of(reader[:t]) + (1 - is_there)
                    self.cp.add(alive >= sum_of(maker[:t]) - gone)
                alive_at[t].append(num_bytes * alive)
        for t in self.slots:
            rise = sum_of(effects.rise_bytes(op) * at[t] for op, at in self.at.items())
            self.cp.add(sum_of(alive_at[t]) + sum_of(self.held_at[t]) + rise <= min(headrooms))
            self.cp.add(sum_of(alive_at[t]) + sum_of(self.waiting_at[t]) <= min(headrooms))

    # Solutions

    def read(self, value_of: Callable[[cp_model.LinearExpr], int]) -> tuple[list[Op], int]:
        """The program of a solution, micro-batches by round, and its window.

        The number of an UNSHARD or REDUCE_GRAD is that of its boundary.
        """
        found: list[Op] = []
        there = [one for one in (*self.gathers, *self.scatters) if value_of(one.is_there)]
        for t in self.slots:
            here = sorted((o for o in there if o.boundary == t), key=lambda o: value_of(o.start))
            found += [Op(one.kind, one.stage, t) for one in here]
            found += [op for op, at in self.at.items() if value_of(at[t])]
        return found, sum(map(value_of, self.window_beyond))
