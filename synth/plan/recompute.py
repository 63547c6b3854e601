"""Recomputation: for which stages F keeps nothing but its input, and R rebuilds the rest before B.

The search does not know R. It sees stages whose B takes R's time too, climbs as far as both, and
finds nothing kept by F (`merged`); its schedule is then written out, each such B as R B, verified
and simulated on the true costs:

    searched     | F0 | F1 |   B0    |   B1    | W0 | W1 |
    written out  | F0 | F1 | R0 | B0 | R1 | B1 | W0 | W1 |    R0 need not wait for B0's gradient
"""

import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from itertools import product

from synth.costs import Costs, StageCosts
from synth.kinds import OpKind
from synth.objective import Spans
from synth.schedule.model import Schedule
from synth.schedule.ops import Op
from synth.solve.bounds import rank_bounds, work_bounds
from synth.solve.feasible import find_shortage
from synth.solve.memory_views import relaxed_for_fusion
from synth.solve.polish import BUFFERINGS, Candidate, evaluate
from synth.solve.portfolio import solve
from synth.solve.problem import (
    Incumbent,
    Part,
    Problem,
    Result,
    Rival,
    SolveOptions,
    StoppedBy,
    relative_gap,
)

OnImprovement = Callable[[Incumbent], None]

# Of the time limit, for trying out how many stages recompute; and at most so many numbers of them.
_TRIAL_SHARE = 0.4
_MOST_TRIALS = 9

# Stages on one rank up to which all their choices are looked at for a bound.
_MOST_HELD = 4

_BACKWARDS = (OpKind.B, OpKind.BW)


def merged(costs: Costs, stages: Collection[int]) -> Costs:
    """The costs as the search sees them: R is the first part of B, and of BW."""
    last = costs.num_stages - 1
    return costs.replace(
        stages=tuple(
            _merged(stage, is_last=number == last) if number in stages else stage
            for number, stage in enumerate(costs.stages)
        )
    )


def _merged(stage: StageCosts, *, is_last: bool) -> StageCosts:
    duration, rise = dict(stage.duration_us), dict(stage.rise_bytes)
    again = stage.output_bytes if stage.output_until != OpKind.F and not is_last else 0
    grown = stage.saved_bytes + again - stage.replay_bytes
    for kind in _BACKWARDS:
        duration[kind] += duration[OpKind.R]
        rise[kind] = max(rise[OpKind.R], grown + rise[kind], 0)
    rise[OpKind.F] = stage.light_rise
    return stage.replace(
        duration_us=duration,
        rise_bytes=rise,
        saved_bytes=stage.replay_bytes,
        saved_w_bytes=stage.saved_w_bytes + (again if stage.output_until == OpKind.W else 0),
        input_until=max(stage.input_until, OpKind.B, key=lambda kind: kind.rank_in_chain),
        output_until=OpKind.F,
    )


def written_out(schedule: Schedule, stages: Collection[int]) -> Schedule:
    """The schedule with R right before each B or BW of some stages."""

    def ops(program: Sequence[Op]) -> Iterator[Op]:
        for op in program:
            if op.stage in stages and op.kind in _BACKWARDS:
                yield op._replace(kind=OpKind.R)
            yield op

    return replace(schedule, programs=tuple(tuple(ops(program)) for program in schedule.programs))


def without_recompute(schedule: Schedule) -> Schedule:
    """The schedule without its R's, the reverse of `written_out`."""
    programs = tuple(
        tuple(op for op in program if op.kind != OpKind.R) for program in schedule.programs
    )
    return replace(schedule, programs=programs)


def recomputed(schedule: Schedule) -> list[int]:
    """The stages of which R's are listed."""
    ops = (op for program in schedule.programs for op in program)
    return sorted({op.stage for op in ops if op.kind == OpKind.R})


def bounds(problem: Problem, stages: Collection[int]) -> Spans:
    """Lower bounds of makespan and period, wherever the R's of these stages stand."""
    return Spans.most(_rank_bounds(problem, stages))


def bounds_of_any_choice(problem: Problem) -> Spans:
    """Lower bounds whichever stages recompute.

    What a rank implies depends on its own stages alone, so the least over the choices for each
    rank, and of those the most over all ranks, bounds every choice of all.
    """
    held = [sorted({stage for stage, _ in pairs}) for pairs in problem.placement.held]
    most = max(map(len, held))
    if most > _MOST_HELD:
        return work_bounds(relaxed_for_fusion(replace(problem, caps_bytes=None)))
    found = []
    for chosen in product((False, True), repeat=most):
        stages = {s for stages in held for s, on in zip(stages, chosen, strict=False) if on}
        found.append(_rank_bounds(problem, stages))
    return Spans.most(Spans.least(of_rank) for of_rank in zip(*found, strict=True))


def _rank_bounds(problem: Problem, stages: Collection[int]) -> list[Spans]:
    """Closed forms of a relaxation in which no B waits for its R, nothing rebuilt is held longer
    than its B takes, and each rank has the work of its R's besides."""
    light = tuple(
        _relaxed(true, seen) if number in stages else true
        for number, (true, seen) in enumerate(
            zip(problem.costs.stages, merged(problem.costs, stages).stages, strict=True)
        )
    )
    view = relaxed_for_fusion(replace(problem, costs=problem.costs.replace(stages=light)))
    added = [0] * problem.num_ranks
    for replica, ranks in enumerate(problem.placement.ranks):
        _, count = problem.share(replica)
        for stage in stages:
            added[ranks[stage]] += count * problem.costs.stages[stage].duration_us[OpKind.R]
    return rank_bounds(view, added)


def _relaxed(true: StageCosts, seen: StageCosts) -> StageCosts:
    """Memory as little as can be, R's time left out."""
    rise = dict(seen.rise_bytes)
    for kind in _BACKWARDS:
        rise[kind] = max(0, true.saved_bytes - true.replay_bytes + true.rise_bytes[kind])
    return seen.replace(
        duration_us=true.duration_us,
        rise_bytes=rise,
        saved_bytes=min(true.saved_bytes, true.replay_bytes),
        saved_w_bytes=true.saved_w_bytes,
        input_until=true.input_until,
    )


def solve_recomputing(
    problem: Problem,
    stages: Collection[int],
    options: SolveOptions | None = None,
    on_improvement: OnImprovement | None = None,
    stop: threading.Event | None = None,
) -> Result:
    """The best schedule found in which just these stages recompute, every micro-batch of theirs.

    The bound holds for every order with this choice of stages. Arguments as of `portfolio.solve`.
    """
    options = options or SolveOptions()
    if options.hint is not None:
        options = replace(options, hint=without_recompute(options.hint))
    if not stages:
        return solve(problem, options, on_improvement, stop)
    search = _Recomputing(problem, frozenset(stages), on_improvement)
    inner = replace(options, without=options.without | {Part.BOUNDS})  # they would hold R's place
    return search.result(solve(search.seen, inner, search.take, stop))


class _Recomputing:
    """Writes out what the search finds, and keeps the best that is fit to run."""

    def __init__(
        self, problem: Problem, stages: frozenset[int], on_improvement: OnImprovement | None
    ) -> None:
        self.problem, self.stages = problem, stages
        self.seen = replace(problem, costs=merged(problem.costs, stages))
        self.bound_us = problem.objective.value_us(bounds(problem, stages))
        self.best: Candidate | None = None
        self._on_improvement = on_improvement

    def take(self, incumbent: Incumbent) -> None:
        """Write an improvement out, and pass it on."""
        candidate = self._evaluate(incumbent.schedule, incumbent.found_by)
        if candidate is None or not self._is_better(candidate):
            return
        self.best = candidate
        if self._on_improvement is not None:
            self._on_improvement(
                replace(
                    incumbent,
                    schedule=candidate.schedule,
                    timeline=candidate.timeline,
                    value_us=candidate.value_us,
                    lower_bound_us=min(self.bound_us, candidate.value_us),
                    peak_bytes=candidate.peak_bytes,
                )
            )

    def result(self, found: Result) -> Result:
        """What the search found at last, on the true costs."""
        rivals = tuple(replace(rival, name=f"{rival.name}+R") for rival in found.rivals)
        if found.schedule is not None:
            last = self._evaluate(found.schedule, found.found_by or "")
            self.best = last if last is not None and self._is_better(last) else self.best
        found = replace(found, problem=self.problem, rivals=rivals, lower_bound_us=self.bound_us)
        best = self.best
        if best is None:
            return replace(found, schedule=None, timeline=None, value_us=None, peak_bytes=None)
        return replace(
            found,
            schedule=best.schedule,
            timeline=best.timeline,
            value_us=best.value_us,
            peak_bytes=best.peak_bytes,
            found_by=best.found_by,
            stopped_by=self._reason(found.stopped_by, best.value_us),
        )

    def _reason(self, reason: StoppedBy, value_us: int) -> StoppedBy:
        """A search that ended with a proof has one for R right before B, and no more."""
        if value_us <= self.bound_us:
            return StoppedBy.OPTIMAL
        return StoppedBy.EXHAUSTED if reason in (StoppedBy.OPTIMAL, StoppedBy.GAP) else reason

    def _is_better(self, candidate: Candidate) -> bool:
        return self.best is None or candidate.value_us < self.best.value_us

    def _evaluate(self, schedule: Schedule, found_by: str) -> Candidate | None:
        """With its own buffering, or where that does not fit with one that does."""
        longer = written_out(schedule, self.stages)
        for buffering in (schedule.buffering, *BUFFERINGS):
            found = evaluate(self.problem, replace(longer, buffering=buffering), found_by)
            if found is not None:
                return found
        return None


def solve_choosing(
    problem: Problem,
    options: SolveOptions | None = None,
    on_improvement: OnImprovement | None = None,
    stop: threading.Event | None = None,
) -> Result:
    """Choose how many of the first stages recompute, and solve with these.

    A stage holds what F keeps for as long as the micro-batch is in the stages behind it, so the
    first stages are those that gain most; how many of them is found by trying. The bound holds for
    every choice of stages (see `bounds_of_any_choice`).

    Which stages they are, the schedule says: see `recomputed`.
    """
    options, began = options or SolveOptions(), time.monotonic()
    bound_us = problem.objective.value_us(bounds_of_any_choice(problem))
    counts = _counts(problem.costs.num_stages)
    trial_s = _TRIAL_SHARE * options.time_limit_s / len(counts)
    best: tuple[tuple[int, ...], Result] | None = None
    rivals: tuple[Rival, ...] = ()
    for count in counts:
        stages = tuple(range(count))
        if best is not None and not _can_win(problem, stages, best[1], options.gap):
            continue
        trial = replace(options, time_limit_s=trial_s)
        found = solve_recomputing(problem, stages, trial, on_improvement, stop)
        rivals = rivals or found.rivals
        if best is None or _merit(found) < _merit(best[1]):
            best = stages, found
        if stop is not None and stop.is_set():
            break
    assert best is not None
    stages, found = best
    left_s = options.time_limit_s - (time.monotonic() - began)
    if found.schedule is not None and left_s > 0 and not (stop is not None and stop.is_set()):
        last = replace(options, time_limit_s=left_s, hint=found.schedule)
        longer = solve_recomputing(problem, stages, last, on_improvement, stop)
        found = min(found, longer, key=_merit)
    if found.value_us is not None:
        bound_us = min(bound_us, found.value_us)
    wall_s = time.monotonic() - began
    return replace(
        found,
        lower_bound_us=bound_us,
        rivals=tuple(rivals),
        wall_s=wall_s,
        stopped_by=_stopped(found, bound_us, options.gap),
    )


def _counts(num_stages: int) -> list[int]:
    """None, all, and evenly between."""
    steps = min(num_stages, _MOST_TRIALS - 1)
    return sorted({round(i * num_stages / steps) for i in range(steps + 1)})


def _can_win(problem: Problem, stages: tuple[int, ...], best: Result, gap: float) -> bool:
    if find_shortage(replace(problem, costs=merged(problem.costs, stages))) is not None:
        return False
    if best.value_us is None:
        return True
    bound_us = problem.objective.value_us(bounds(problem, stages))
    return relative_gap(best.value_us, bound_us) > gap


def _merit(found: Result) -> tuple[bool, int]:
    return found.value_us is None, found.value_us or 0


def _stopped(found: Result, bound_us: int, gap: float) -> StoppedBy:
    if found.value_us is None or found.stopped_by == StoppedBy.INTERRUPT:
        return found.stopped_by
    if found.value_us <= bound_us:
        return StoppedBy.OPTIMAL
    if relative_gap(found.value_us, bound_us) <= gap:
        return StoppedBy.GAP
    ended = (StoppedBy.OPTIMAL, StoppedBy.GAP)
    return StoppedBy.EXHAUSTED if found.stopped_by in ended else found.stopped_by
