"""The charts of a page: timed schedules with the words around them."""

from dataclasses import dataclass
from typing import Self

from synth.profile.throughput import throughput
from synth.report.chart.timed import TimedSchedule
from synth.report.explain.overlay import Overlay
from synth.report.text.tables import places, recomputed_places
from synth.schedule.files.plan_file import Plan
from synth.schedule.rank_memory import peak_bytes
from synth.schedule.simulate import Timeline
from synth.units import format_bytes, format_us


@dataclass(frozen=True)
class Chart:
    """A timed schedule with its title.

    Attributes:
        note: its figures in one line.
        stages: the layers of each stage, in words.
        caps_bytes: the memory limit of each rank, if there is one.
        reason: a sentence on why the schedule is as it is; may be empty.
        explanation: its critical path and idle time as lines of text; may be empty.
    """

    title: str
    note: str
    timed: TimedSchedule
    stages: tuple[str, ...]
    caps_bytes: tuple[int, ...] | None = None
    reason: str = ""
    explanation: str = ""

    @classmethod
    def planned(
        cls, title: str, plan: Plan, timeline: Timeline, reason: str = "", explanation: str = ""
    ) -> Self:
        """Make the chart of a simulated schedule in the partition and limits of a plan."""
        return cls(
            title,
            _figures(plan, timeline),
            TimedSchedule.of_timeline(timeline),
            _stage_names(plan),
            plan.caps_bytes,
            reason,
            explanation,
        )

    @classmethod
    def measured(cls, title: str, plan: Plan, overlaid: Overlay) -> Self:
        """Make the chart of the traced iteration of an overlay."""
        assert overlaid.measured is not None
        timed = TimedSchedule.of_trace(
            overlaid.timeline.lowered, overlaid.measured, late=overlaid.late
        )
        note = f"step {overlaid.step}, {overlaid.source}; memory as planned"
        return cls(title, note, timed, _stage_names(plan), plan.caps_bytes)


def _figures(plan: Plan, timeline: Timeline) -> str:
    makespan_us = timeline.makespan_us
    peak = max(peak_bytes(timeline.lowered), default=0)
    per_s = plan.claim.judged_by.iterations_per_s(timeline)
    trained = throughput(per_s, plan.num_micro_batches, plan.num_ranks, plan)
    # Of times alone neither tokens nor FLOPs are known.
    is_counted = plan.workload.runnable or plan.workload.tokens > 1
    speed = trained.words if is_counted or trained.rank_flops_per_s is not None else ""
    return (
        f"makespan {format_us(makespan_us)}, period {format_us(timeline.period_us)}, "
        f"{_idle_shares(timeline)}, "
        f"highest peak {format_bytes(peak)}{speed and f', {speed}'}"
    )


def _idle_shares(timeline: Timeline) -> str:
    """Return bubble rate and mean idle share, and of which ranks they are if they differ."""
    work_us, span_us = timeline.work_us, timeline.makespan_us
    bubble, idle = f"{timeline.bubble_rate(span_us):.1%}", f"{timeline.mean_idle(span_us):.1%}"
    if bubble == idle:
        return f"bubble rate {bubble}, mean idle {idle} of the makespan"
    busiest = work_us.index(max(work_us))
    return (
        f"bubble rate {bubble} (rank {busiest} with the most work), mean idle {idle} (all ranks) "
        f"of the makespan"
    )


def _stage_names(plan: Plan) -> tuple[str, ...]:
    """Return the layers of each stage: `layers 0–2 (embedding … block.1)`."""
    names = []
    for stage in range(len(plan.partition)):
        layers = plan.layers_of(stage)
        ends = list(dict.fromkeys((plan.layers[layers[0]], plan.layers[layers[-1]])))
        again = recomputed_places(plan.recomputation.within(layers))
        more = f"; recomputed {again}" if again else ""
        word = "layer" if len(layers) == 1 else "layers"
        names.append(f"{word} {places(layers)} ({' … '.join(ends)}{more})")
    return tuple(names)
