"""Solve: explain infeasibility, start from the best known schedule, search until proven."""

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from synth.certificate import Certificate, Proven, ProverName, Relaxation
from synth.schedule.model import Buffering
from synth.schedule.ops import Op
from synth.solve import infeasibility
from synth.solve.bounds import closed_form
from synth.solve.bounds.prover import Prover
from synth.solve.cpsat.model import ExactModel
from synth.solve.cpsat.run import ModelOutcome, run
from synth.solve.crosscheck.milp import run_milp
from synth.solve.evaluate import evaluate
from synth.solve.evaluate.evaluate import BUFFERINGS
from synth.solve.improve import list_scheduling
from synth.solve.improve.annealing import Annealing
from synth.solve.improve.lns.robust_windows import RobustWindows
from synth.solve.improve.modulo import several_micro_batches
from synth.solve.improve.modulo.unroll import ModuloSchedules
from synth.solve.improve.published import PublishedIncumbents
from synth.solve.improve.robustness.robustness import improve_robustness
from synth.solve.improve.short_instance import ShortInstance
from synth.solve.instance.instance import Instance
from synth.solve.instance.memory_models import (
    distinct,
    relaxed_for_fusion,
    relaxed_memory,
    safe_memory,
)
from synth.solve.instance.timing import ScoredPrograms, TimedOrders
from synth.solve.order_pool import OrderPool
from synth.solve.problem import (
    Baseline,
    Part,
    Problem,
    Result,
    SolveOptions,
    SolverName,
    StoppedBy,
)
from synth.solve.search_state import OnImprovement, SearchState
from synth.solve.tuning import ANNEALING, LIST_SCHEDULING, SEARCH


def solve(
    problem: Problem,
    options: SolveOptions | None = None,
    on_improvement: OnImprovement | None = None,
    stop: threading.Event | None = None,
) -> Result:
    """Find the best schedule within the caps, and prove how good it is.

    Never returns a schedule that exceeds a cap, nor one worse than a published family that fits,
    keeps what F saves where it is, and that there was time to look at. Where a cap admits the
    serial schedule, there is an answer.

    Args:
        options: limits and seeds.
        on_improvement: called in this thread for every better verified schedule or bound.
        stop: set it, from any thread, to get the best so far within about a second. The MILP
            solver heeds it only between its runs.
    """
    return _Search(problem, options or SolveOptions(), on_improvement, stop).run()


class _Search:
    """The steps that better the incumbent and the bound, in the order in which they run."""

    def __init__(
        self,
        problem: Problem,
        options: SolveOptions,
        on_improvement: OnImprovement | None,
        stop: threading.Event | None,
        within: SearchState | None = None,
    ) -> None:
        self.problem, self.options = problem, options
        self.state = SearchState(problem, options, on_improvement, stop, within)
        self.fusion_relaxed = relaxed_for_fusion(problem)
        self.relaxed_memory = relaxed_memory(problem)
        self.annealing: Annealing | None = None
        self.baselines: list[Baseline] = []
        self.pool = OrderPool(problem.objective)
        self.fewer_share = 0.0
        self.prover = Prover(self.fusion_relaxed, problem.objective, options, self.state, self.pool)

    def run(self) -> Result:
        shortage = infeasibility.find_shortage(self.problem)
        starts = PublishedIncumbents(self.problem, self.options, self.state)
        if self.options.hint is not None and shortage is None:
            # First, so that nothing worse is saved in its place.
            starts.try_hint(self.options.hint)
        if Part.FAMILIES not in self.options.without:
            starts.try_families()
        self.baselines = starts.baselines
        if shortage is not None:
            return self._result(StoppedBy.INFEASIBLE, str(shortage))
        if self.state.best is None:
            starts.try_serial()
        closed_us = closed_form.work_bound_us(self.fusion_relaxed, self.problem.objective)
        self.state.raise_bound(Proven.by_closed_forms(closed_us))
        try:
            for step in self._steps():
                if self.state.finished():
                    break
                step()
            self.prover.stop()
            if not self.state.is_within:
                self._close()
        finally:
            self.prover.end()
        return self._result(self.state.reason())

    def _steps(self) -> Iterator[Callable[[], None]]:
        """What takes a moment first, then what takes as long as there is."""
        without = self.options.without
        if Part.LIST_SCHEDULING not in without:
            yield lambda: self._try_heuristics(
                LIST_SCHEDULING.quick_ops, (Buffering(0, 0), *BUFFERINGS)
            )
        yield self._improve_best
        if self.options.solver == SolverName.MILP:
            yield lambda: self._search(self.state.left_s())
            return
        local = Part.LOCAL_SEARCH not in without and self._buffers_matter
        is_small = self._is_small
        if Part.BOUNDS not in without:
            # Where they take a while, the search need not wait for them.
            is_first = is_small or not self.prover.is_beside
            if is_first:
                yield self.prover.one_by_one
            yield lambda: self.prover.begin(from_one=not is_first)
        if local:
            if Part.EXACT not in without and self.fusion_relaxed.num_ops <= SEARCH.exact_alone_ops:
                yield lambda: self._search(SEARCH.brief_share * self.state.left_s())
            yield lambda: self._improve_locally(SEARCH.annealing_share_first, ends_stalled=True)
        if (
            not {Part.FEWER, Part.EXACT} & without
            and self.fusion_relaxed.num_ops > SEARCH.exact_alone_ops
        ):
            yield self._try_fewer
        if Part.EXACT not in without and self.fusion_relaxed.num_ops <= SEARCH.exact_brief_ops:
            has_all = self.fusion_relaxed.num_ops <= SEARCH.exact_alone_ops or self._is_exact_alone
            share = SEARCH.brief_share
            if has_all:
                share = SEARCH.annealing_share if local else 1
            yield lambda: self._search(share * self.state.left_s())
        if not (Part.LIST_SCHEDULING in without or is_small or self._is_exact_alone):
            per_s = (
                LIST_SCHEDULING.ops_per_s_with_rounds
                if several_micro_batches.applies(self.fusion_relaxed)
                else LIST_SCHEDULING.ops_per_s
            )
            ops = round(per_s * self.options.time_limit_s)
            yield lambda: self._try_heuristics(ops, self._best_bufferings())
        if Part.PATTERNS not in without:
            yield self._try_repeats
        if Part.BOUNDS not in without:
            yield self.prover.take_turn
        if Part.WINDOWS not in without:
            yield self._improve_windows
        if local:
            yield lambda: self._improve_locally(SEARCH.annealing_share)
        is_done = local and self.fusion_relaxed.num_ops <= SEARCH.exact_alone_ops
        if (
            Part.EXACT not in without
            and self.fusion_relaxed.num_ops <= SEARCH.exact_most_ops
            and not is_done
        ):
            last = SEARCH.annealing_share if local else 1
            yield lambda: self._search(last * self.state.left_s())
        if local:
            yield lambda: self._improve_locally(1)
        yield self.prover.wait

    @property
    def _buffers_matter(self) -> bool:
        """True if boundary buffers take room under a cap, which models only bracket.

        A search that serves another one leaves them to that.
        """
        some = safe_memory(self.problem, Buffering(0, 0))
        return (
            bool(self.problem.caps_bytes)
            and not self.state.is_within
            and some != self.relaxed_memory
        )

    @property
    def _is_exact_alone(self) -> bool:
        """Whether the exact model is all that is to better the heuristics."""
        return {Part.PATTERNS, Part.WINDOWS} <= self.options.without

    @property
    def _is_small(self) -> bool:
        """Whether the exact model of all may find or prove something soon."""
        is_alone = all(len(held) == 1 for held in self.fusion_relaxed.held)
        return self.fusion_relaxed.num_ops <= (
            SEARCH.small_ops if is_alone else SEARCH.small_ops_of_several
        )

    def _try_heuristics(self, max_ops: int, bufferings: Sequence[Buffering]) -> None:
        """List scheduling with room for the boundary buffers of each buffering."""
        instances = distinct(safe_memory(self.problem, buffering) for buffering in bufferings)
        for index, instance in enumerate(instances):
            if self.state.finished():
                return
            share_s = (self.state.left_s() - 2 * self.state.evaluation_s) / (len(instances) - index)
            ops = max_ops // min(LIST_SCHEDULING.most_models, len(instances))
            self._try_list_scheduling(instance, ops, self.state.elapsed_s() + share_s)

    def _best_bufferings(self) -> Sequence[Buffering]:
        """The one that the incumbent has, and the usual one."""
        if self.state.best is None:
            return BUFFERINGS
        return (self.state.best.schedule.buffering, BUFFERINGS[0])

    def _try_list_scheduling(self, instance: Instance, max_ops: int, until_s: float) -> None:
        objective, seed = self.problem.objective, self.options.seed
        found = list_scheduling.search(
            instance,
            objective,
            max_ops,
            seed,
            lambda: self.state.finished() or self.state.too_late_by(until_s),
        )
        if found:
            self.pool.add(found[0][0].programs(instance))
        for scored, _ in found[
            : 1 if self.state.time_is_up() else LIST_SCHEDULING.orders_evaluated
        ]:
            if self.state.best is not None and scored.value_us >= self.state.best.value_us:
                break
            self._try_order(scored.programs(instance), "list scheduling", scored.value_us)

    def _try_order(self, programs: tuple[tuple[Op, ...], ...], found_by: str, value: int) -> None:
        """Evaluate an order exactly, with as many bufferings as there is time for."""
        self.state.offer(
            evaluate.evaluate_order(self.problem, programs, found_by, value, self.state.time_is_up)
        )

    def _try_repeats(self) -> None:
        """Schedules that repeat one micro-batch or a few."""
        for found in ModuloSchedules(self.problem, self.options, self.state, self.fewer_share):
            self._try_programs(found)

    def _try_programs(self, found: ScoredPrograms) -> None:
        self.pool.add(found.programs)
        if self.state.best is None or found.value_us < self.state.best.value_us:
            self._try_order(found.programs, found.found_by, found.value_us)

    def _try_fewer(self) -> None:
        """A schedule for fewer micro-batches, found by a search of its own, extended."""
        few = ShortInstance(self.problem, self.fusion_relaxed, self.options, self.state)

        def search(problem: Problem, options: SolveOptions, tell: OnImprovement) -> Result:
            return _Search(problem, options, tell, self.state.stop, self.state).run()

        if few.is_worth:
            self.fewer_share = few.run(search, self.prover.num_workers_left, self._try_programs)

    def _improve_best(self) -> None:
        """Better buffering, and BW for B W where it pays."""
        self._polish_best(self.state.time_is_up)

    def _polish_best(self, should_stop: Callable[[], bool]) -> None:
        if self.state.best is None or self.state.is_proven() or should_stop():
            return
        self.state.offer(evaluate.rebuffer(self.problem, self.state.best, should_stop))
        if self.fusion_relaxed != relaxed_memory(self.problem):
            self.state.offer(evaluate.fuse_backward(self.problem, self.state.best, should_stop))

    def _close(self) -> None:
        """The last polish, then what costs nothing: fewer ops (BW for B W), buffers, slack."""
        until_s = max(self.state.elapsed_s(), self.options.time_limit_s) + SEARCH.grace_s

        def should_stop() -> bool:
            return self.state.too_late_by(until_s)

        self._polish_best(should_stop)
        if self.state.best is not None:
            self.state.best = evaluate.fuse_backward(self.problem, self.state.best, should_stop)
        if self.state.best is not None and not should_stop():
            self.state.best = evaluate.relax_buffering(self.problem, self.state.best, should_stop)
            if Part.SLACK not in self.options.without:
                self.state.best = improve_robustness(self.problem, self.state.best, should_stop)

    def _improve_locally(self, share: float, *, ends_stalled: bool = False) -> None:
        """Local search on exact memory and times, from all orders known, for a share of the time.

        A deterministic search counts its effort instead.

        Args:
            ends_stalled: end when nothing better was found for a while.
        """
        if self.state.best is None:
            return
        if self.annealing is None:
            self.annealing = Annealing(self.problem, self.options.seed)
        local = self.annealing
        local.add(self.state.best.schedule.programs, [self.state.best.schedule.buffering])
        for programs in self.pool.take_new():
            local.add(programs)
        until_s = self.state.elapsed_s() + share * self.state.left_s()
        limit_units = self.options.time_limit_s * ANNEALING.units_per_s
        began, improved = local.units_spent, local.units_spent

        def should_stop() -> bool:
            late = not self.options.deterministic and self.state.elapsed_s() > until_s
            patience = max(ANNEALING.least_stalled_share * limit_units, improved - began)
            stalled = ends_stalled and local.units_spent - improved > patience
            return late or stalled or self.state.finished()

        effort = (
            SEARCH.annealing_share_first * limit_units if self.options.deterministic else math.inf
        )
        for candidate in local.run(effort, should_stop):
            improved = local.units_spent
            self.state.offer(candidate)

    def _improve_windows(self) -> None:
        """Large-neighbourhood search."""
        share = SEARCH.window_share if self._is_small else SEARCH.window_share_of_large
        effort_share = SEARCH.window_share if self.options.deterministic else 1
        turns = RobustWindows(
            self.problem,
            self.options,
            self.state,
            self.pool,
            self.prover.num_workers_left,
            self._take,
        )
        turns.run(
            self.state.elapsed_s() + share * self.state.left_s(),
            effort_share * self.options.time_limit_s,
            is_patient=not self._is_small,  # there the exact model may find what they do not
        )

    def _search(self, limit_s: float) -> None:
        """The whole problem: the relaxation that bounds first, then, if need be, those that find.

        Where BW gains nothing the first two are the same, without boundary bytes all are.
        """
        until_s = self.state.elapsed_s() + limit_s
        instances = [self.fusion_relaxed, relaxed_memory(self.problem)]
        if self.state.best is not None:
            instances.append(safe_memory(self.problem, self.state.best.schedule.buffering))
        instances = distinct([*instances, safe_memory(self.problem, BUFFERINGS[0])])
        for index, instance in enumerate(instances):
            if self.state.finished():
                return
            left_s = until_s - self.state.elapsed_s()
            if self.options.deterministic:
                left_s = limit_s
            limit_s -= self._search_in(instance, left_s / (len(instances) - index))

    def _search_in(self, instance: Instance, limit_s: float) -> float:
        """Search in one instance; what was spent of the limit, in its terms."""
        fusible = instance != self.fusion_relaxed
        hint, value_us = self._hint_for(instance, fusible)
        # The relaxation holds for every schedule; so does what counts certain bytes only and
        # chooses between B W and BW. The safe instances leave out schedules that would fit.
        proves = not fusible or (instance == relaxed_memory(self.problem) and instance.can_fuse_all)
        if self.options.solver == SolverName.MILP:
            proves = proves and not fusible
            outcome = run_milp(instance, self.problem.objective, value_us, limit_s)
        else:
            model = self._model(instance, hint, value_us, proves, fusible)
            certificate = self._certificate(instance, fusible) if proves else None
            outcome = self._run_cpsat(instance, model, limit_s, certificate)
        if proves:
            self.state.raise_bound(Proven(outcome.bound_us, self._certificate(instance, fusible)))
            if outcome.optimal and not fusible:
                self.prover.stop()  # no bound of the relaxed problem is higher
            # Without any schedule the horizon is that of the slowest one there could be.
            if outcome.infeasible and self.state.best is None:
                self.state.deny(self._certificate(instance, fusible))
        if outcome.timing is not None:
            self._take(instance, outcome.timing, self.options.solver)
        return outcome.spent_s

    def _model(
        self,
        instance: Instance,
        hint: TimedOrders | None,
        value_us: int,
        proves: bool,
        fusible: bool,
    ) -> ExactModel:
        model = ExactModel(instance, self.problem.objective, value_us, fusible=fusible)
        model.both_at_least(closed_form.work_bounds(self.fusion_relaxed))
        if proves:
            model.at_least(self.state.bound_us)
        if hint is not None:
            model.hint(hint, value_us)
        return model

    def _certificate(self, instance: Instance, fusible: bool) -> Certificate:
        """Certify a bound of the exact model."""
        return Certificate(
            prover=ProverName.MILP if self.options.solver == SolverName.MILP else ProverName.EXACT,
            relaxation=Relaxation.FUSIBLE if fusible else Relaxation.SPLIT,
            num_micro_batches=max(copy.num_micro_batches for copy in instance.copies),
        )

    def _run_cpsat(
        self, instance: Instance, model: ExactModel, limit_s: float, certificate: Certificate | None
    ) -> ModelOutcome:
        """Run it and take what comes; bounds with a certificate only."""

        def on_event(event: TimedOrders | int) -> None:
            if isinstance(event, TimedOrders):
                self._take(instance, event, self.options.solver)
            elif certificate is not None:
                self.state.raise_bound(Proven(event, certificate))

        options = replace(self.options, workers=self.prover.num_workers_left)
        return run(model, options, limit_s, on_event, self.state.finished)

    def _take(self, instance: Instance, timing: TimedOrders, found_by: str) -> None:
        """Evaluate a solution exactly, if the model thinks that it is better."""
        value_us = timing.value_us(instance, self.problem.objective)
        if self.state.best is None or value_us < self.state.best.value_us:
            self._try_order(timing.programs(instance), found_by, value_us)

    def _best_programs(self) -> Sequence[Sequence[Op]] | None:
        return None if self.state.best is None else self.state.best.schedule.programs

    def _hint_for(self, instance: Instance, fusible: bool) -> tuple[TimedOrders | None, int]:
        return self.pool.hint(instance, self._best_programs(), fusible)

    # The answer

    def _result(self, stopped_by: StoppedBy, message: str | None = None) -> Result:
        best = self.state.best
        if best is None and message is None:
            message = "no schedule was found in the time given; allow more time or more memory"
            if stopped_by == StoppedBy.INFEASIBLE:
                message = "no schedule keeps the caps: proven by an exhausted search"
        return Result(
            problem=self.problem,
            schedule=best.schedule if best else None,
            timeline=best.timeline if best else None,
            value_us=best.value_us if best else None,
            lower_bound_us=self.state.bound_us,
            peak_bytes=best.peak_bytes if best else None,
            found_by=best.found_by if best else None,
            stopped_by=stopped_by,
            baselines=tuple(self.baselines),
            wall_s=self.state.elapsed_s(),
            message=message,
            certificate=self.state.proven.certificate,
        )
