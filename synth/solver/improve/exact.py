"""The whole problem as one exact model, for CP-SAT or as a mixed-integer program.

It is solved under several memory models: the relaxed one first, which also proves bounds, then, if
need be, those whose schedules nearly always fit. Where BW gains nothing the first two models are
the same, without boundary bytes all are.
"""

from dataclasses import replace
from typing import ClassVar

from synth.schedule.files.certificate import Certificate, ProvenBound, ProverName, Relaxation
from synth.solver.cpsat.model import ExactModel
from synth.solver.cpsat.op_variables import can_fuse_all
from synth.solver.cpsat.run import ModelOutcome, run
from synth.solver.crosscheck.milp import run_milp
from synth.solver.evaluate.evaluate import BUFFERINGS
from synth.solver.improve.improver import SearchContext
from synth.solver.instance.instance import Instance
from synth.solver.instance.memory_models import distinct, relaxed_memory, safe_memory
from synth.solver.instance.timing import TimedOrders
from synth.solver.options import Part, SolveOptions, SolverName


class ExactSearch:
    """Runs exact models of all ranks."""

    part: ClassVar[Part] = Part.EXACT

    def __init__(self, context: SearchContext) -> None:
        self.state, self.problem = context.state, context.state.problem
        self.fusion_relaxed, self.work = context.fusion_relaxed, context.work
        self.relaxed_memory = relaxed_memory(self.problem)
        self.options: SolveOptions = replace(self.state.options, workers=context.workers)
        self.on_optimum = context.on_optimum

    def run(self, share: float, *, is_brief: bool) -> None:
        """Solve one memory model after the other in a share of the remaining time."""
        self.options.report_part(self.part)
        budget = self.state.budget
        allowance = budget.allow(share * budget.left_s())
        instances = self._instances()
        for index, instance in enumerate(instances):
            if self.state.poll():
                return
            share_s = allowance.left_s() / (len(instances) - index)
            allowance.spend(self._solve(instance, share_s))

    def _instances(self) -> list[Instance]:
        best = self.state.best
        bufferings = [BUFFERINGS[0]] if best is None else [best.schedule.buffering, BUFFERINGS[0]]
        safe = (safe_memory(self.problem, buffering) for buffering in bufferings)
        return distinct([self.fusion_relaxed, self.relaxed_memory, *safe])

    def _solve(self, instance: Instance, limit_s: float) -> float:
        """Solve one instance; return the seconds spent, in the terms of the limit."""
        is_fusible = instance != self.fusion_relaxed
        hint, value_us = self.state.pool.hint(instance, self.state.best_programs, is_fusible)
        certificate = self._certificate(instance, is_fusible)
        if self.options.solver == SolverName.MILP:
            outcome = run_milp(instance, self.problem.objective, value_us, limit_s)
        else:
            model = self._model(
                instance, hint, value_us, is_fusible=is_fusible, is_proving=certificate is not None
            )
            outcome = self._run_cpsat(instance, model, limit_s, certificate)
        if certificate is not None:
            self.state.raise_bound(ProvenBound(outcome.bound_us, certificate))
            if outcome.optimal and not is_fusible:
                self.on_optimum()  # no other relaxation proves a higher bound
            # Without any schedule the horizon is that of the slowest one there could be.
            if outcome.infeasible and self.state.best is None:
                self.state.deny(certificate)
        if outcome.timing is not None:
            self.state.try_timing(instance, outcome.timing, self.options.solver)
        return outcome.spent_s

    def _certificate(self, instance: Instance, is_fusible: bool) -> Certificate | None:
        """Certify bounds of an instance that is a relaxation; None for the others.

        The split relaxation holds for every schedule. So does the relaxed memory model with the
        choice between B W and BW, which only CP-SAT's model has. The safe memory models leave out
        schedules that would fit.
        """
        is_milp = self.options.solver == SolverName.MILP
        if is_fusible and (
            is_milp or instance != self.relaxed_memory or not can_fuse_all(instance)
        ):
            return None
        return Certificate(
            prover=ProverName.MILP if is_milp else ProverName.EXACT,
            relaxation=Relaxation.FUSIBLE if is_fusible else Relaxation.SPLIT,
            num_micro_batches=max(copy.num_micro_batches for copy in instance.copies),
        )

    def _model(
        self,
        instance: Instance,
        hint: TimedOrders | None,
        value_us: int,
        *,
        is_fusible: bool,
        is_proving: bool,
    ) -> ExactModel:
        model = ExactModel(instance, self.problem.objective, value_us, fusible=is_fusible)
        model.both_at_least(self.work)
        if is_proving:
            model.at_least(self.state.bound_us)
        if hint is not None:
            model.hint(hint, value_us)
        return model

    def _run_cpsat(
        self, instance: Instance, model: ExactModel, limit_s: float, certificate: Certificate | None
    ) -> ModelOutcome:
        """Run CP-SAT and take solutions as they come, and bounds if they are certified."""

        def on_event(event: TimedOrders | int) -> None:
            if isinstance(event, TimedOrders):
                self.state.try_timing(instance, event, self.options.solver)
            elif certificate is not None:
                self.state.raise_bound(ProvenBound(event, certificate))

        return run(model, self.options, limit_s, on_event, self.state.poll)


IMPROVER = ExactSearch
