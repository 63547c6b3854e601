"""A schedule within its memory limits by offloads, for a given order of F, B and W."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from synth.objective import Spans
from synth.op_kinds import MOVES, OpKind
from synth.plan.offload.rank_moves import (
    Interval,
    MovePlaces,
    RankClock,
    RankLevels,
    choose_moves,
    intervals_of,
)
from synth.plan.tuning import OFFLOAD
from synth.schedule.lowering.lower import Lowered
from synth.schedule.model import Buffering, Schedule
from synth.schedule.ops import Op
from synth.schedule.rank_memory import slot_levels
from synth.schedule.simulate import Timeline
from synth.schedule.verify import ScheduleError, check_deadlock, lower_checked
from synth.solver.evaluate.evaluate import BUFFERINGS, EvaluatedSchedule, evaluate, never
from synth.solver.problem import Problem


def without_moves(schedule: Schedule) -> Schedule:
    """Return a schedule whose saved activations stay on their ranks."""
    programs = (tuple(op for op in ops if op.kind not in MOVES) for ops in schedule.programs)
    return replace(schedule, programs=tuple(programs))


def with_offloads(
    problem: Problem,
    order: Schedule,
    found_by: str,
    most_us: float = math.inf,
    most_factor: float = math.inf,
    should_stop: Callable[[], bool] = never,
) -> EvaluatedSchedule | None:
    """Return an order with offloads by which it keeps the memory limits.

    Moves are chosen by the clock of the order, and again by that of the plan that has them, in
    which the delays of a rank have reached the others. Buffering is tried from the order's own on,
    as a send is waited for a number of ops behind it, and a move takes longer than a boundary.
    Few buffers are tried where it fits with no others.

    Args:
        problem: with memory limits, and costs that have a link to the host.
        order: without moves.
        found_by: the name of the result.
        most_us: a value above which a plan is of no use.
        most_factor: the same as a multiple of the order's value without limits.
        should_stop: polled before each buffering and each delay.

    Returns:
        The fastest one found; None: it fits with no offloads that were found.
    """
    best: EvaluatedSchedule | None = None
    own = order.buffering
    longer = (Buffering(own.receive_ahead, behind) for behind in OFFLOAD.sends_behind)
    for buffering in dict.fromkeys((own, *longer, *BUFFERINGS)):
        is_smaller = buffering.send_behind < OFFLOAD.sends_behind[0]
        if should_stop() or (best is not None and is_smaller):
            break
        limits = most_us if best is None else min(most_us, best.value_us), most_factor
        tried = replace(order, buffering=buffering)
        found = _with_buffering(problem, tried, found_by, limits, should_stop)
        if found is not None and (best is None or found.value_us < best.value_us):
            best = found
    return best


def _with_buffering(
    problem: Problem,
    order: Schedule,
    found_by: str,
    limits: tuple[float, float],
    should_stop: Callable[[], bool],
) -> EvaluatedSchedule | None:
    try:
        lowered = lower_checked(order, problem.costs)
        line = check_deadlock(lowered)
    except ScheduleError:
        return None
    most_us, most_factor = limits
    most_us = min(most_us, most_factor * problem.objective.value_us(line))
    ranks = _Ranks(problem, lowered)
    best: EvaluatedSchedule | None = None
    for _ in range(OFFLOAD.rounds):
        found = ranks.moved(line, found_by, most_us, should_stop)
        if found is None or (best is not None and found.value_us >= best.value_us):
            break
        best, line = found, found.timeline
    return best


class _Ranks:
    """The ranks of an order, and what may move on each."""

    def __init__(self, problem: Problem, lowered: Lowered) -> None:
        self.problem, self.order, caps = problem, lowered.schedule, problem.caps_bytes
        assert caps is not None and problem.costs.links.host is not None
        self.ops = lowered.ops
        num_bytes = [stage.saved_bytes for stage in problem.costs.stages]
        transfer_us = [problem.costs.links.host.transfer_us(size) for size in num_bytes]
        self.intervals = [intervals_of(ops, num_bytes, transfer_us) for ops in self.ops]
        levels, first = slot_levels(lowered), lowered.first_node
        slots = [slice(first[r] + r, first[r + 1] + r + 1) for r in range(lowered.num_ranks)]
        self.levels = [
            RankLevels(levels.waiting[slot] - cap, levels.running[slot] - cap)
            for slot, cap in zip(slots, caps, strict=True)
        ]

    def moved(
        self, line: Timeline, found_by: str, most_us: float, should_stop: Callable[[], bool]
    ) -> EvaluatedSchedule | None:
        """Return the schedule with moves chosen by a clock.

        None if a rank exceeds its limit, or if the value would be above `most_us`.
        """
        rank_us = most_us / self.problem.objective.value_us(Spans(1, 1))
        programs: list[tuple[Op, ...]] = []
        behind = self.order.buffering.send_behind
        ranks = zip(_clocks(line), self.levels, self.intervals, strict=True)
        for clock, levels, intervals in ranks:
            moves = choose_moves(clock, levels, intervals, behind, rank_us, should_stop)
            if moves is None:
                return None
            programs.append(_written(clock.ops, moves))
        schedule = replace(self.order, programs=tuple(programs))
        name = "synth" if schedule.offloads else schedule.name
        return evaluate(self.problem, replace(schedule, name=name), found_by)


def _clocks(line: Timeline) -> Iterator[RankClock]:
    """Yield the clock of each rank's ops, moves left out."""
    first = line.lowered.first_node
    for rank, ops in enumerate(line.lowered.ops):
        kept = [place for place, op in enumerate(ops) if op.kind not in MOVES]
        nodes = [first[rank] + place for place in kept]
        starts = [line.start_us[node] for node in nodes]
        ends = [line.end_us[node] for node in nodes]
        yield RankClock([ops[place] for place in kept], starts, ends)


def _written(ops: Sequence[Op], moves: dict[Interval, MovePlaces]) -> tuple[Op, ...]:
    """Return a rank's program with its moves, without the STEPs that lowering adds."""
    before: dict[int, list[Op]] = {}
    for one, move in sorted(moves.items(), key=lambda item: item[0].backward):
        op = ops[one.backward]._replace(kind=OpKind.RELOAD)
        before.setdefault(move.reload, []).append(op)
    for one, move in sorted(moves.items()):
        op = ops[one.forward]._replace(kind=OpKind.OFFLOAD)
        before.setdefault(move.offload, []).append(op)
    program: list[Op] = []
    for place, op in enumerate(ops):
        program += [*before.get(place, []), op]
    return tuple(op for op in program if op.kind != OpKind.STEP)
