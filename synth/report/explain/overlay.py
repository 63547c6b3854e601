"""A trace overlaid on its plan, and the simulation of a plan as a trace."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from synth.errors import SynthError
from synth.report.explain.difference import Difference, difference_text, explain_difference
from synth.report.explain.run_against_plan import middle_step, shared_timeline
from synth.schedule.files.plan_file import Plan
from synth.schedule.files.scaled import scaled
from synth.schedule.lowering.lower import Lowered
from synth.schedule.measured.execution_trace import ExecutionTrace, planned_execution
from synth.schedule.measured.trace_file import Source, Trace, TracedStep
from synth.schedule.simulate import Timeline


@dataclass(frozen=True)
class Overlay:
    """A plan overlaid with the median iteration of a trace of it, and their difference.

    `timeline` is the prediction. `late` iterations overlap, so that they have no critical path.
    """

    timeline: Timeline
    measured: ExecutionTrace | None = None
    source: Source = Source.SIMULATED
    step: int = 0
    difference: Difference | None = None
    late: bool = False

    @cached_property
    def planned(self) -> ExecutionTrace:
        """The predicted spans."""
        return planned_execution(self.timeline)

    def as_json(self) -> dict[str, Any]:
        """Return the difference for scripts."""
        if self.difference is None:
            return {}
        return {"difference": self.difference.model_dump(mode="json")}

    def text(self) -> str:
        """Return the difference as tables."""
        assert self.difference is not None
        us = (self.difference.measured_us, self.difference.predicted_us)
        said = "step {}, {}: {:.3f} ms, predicted {:.3f} ms"
        head = said.format(self.step, self.source, *(each / 1000 for each in us))
        return f"{head}\n\n{difference_text(self.difference)}"


def overlay(plan: Plan, lowered: Lowered, path: Path) -> Overlay:
    """Overlay a trace on its plan, as predicted for the number of processors of the run.

    Iterations that overlap (steps validated later) have no critical path of their own, and so
    their difference is not taken apart.

    Raises:
        SynthError: the trace holds no iteration.
        Mismatch: it is of another plan.
    """
    trace = Trace.load(path)
    trace.check_of(plan)
    if not trace.steps:
        raise SynthError(f"{path} holds no iteration; run with --steps 3 or more")
    if trace.times != 1.0:
        lowered, _ = scaled(plan, times=trace.times).check()
    timeline = shared_timeline(lowered, trace.processors or lowered.num_ranks, late=trace.late)
    executions = [step.execution() for step in trace.steps]
    middle = middle_step([step.step_us for step in trace.steps])
    step = trace.steps[middle]
    execution, difference = executions[middle], None
    if not trace.late:
        difference = explain_difference(timeline, executions, middle, step.step_us)
    return Overlay(timeline, execution, trace.source, step.step, difference, trace.late)


def save_simulation(plan: Plan, timeline: Timeline, path: Path) -> None:
    """Write the simulation of a plan as a trace file."""
    step = TracedStep.of(planned_execution(timeline), 0, timeline.makespan_us)
    Trace.of(plan, Source.SIMULATED, [step]).save(path)
