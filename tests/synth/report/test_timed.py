"""The times of a chart: those of a simulation, as if they were those of a trace."""

import pytest

from synth.report.chart.timed import TimedSchedule
from synth.report.explain.critical_path import Measured
from tests.synth.report.test_html import make_plan


@pytest.mark.parametrize("name", ["1f1b", "zb-v", "chimera", "interleaved:2"])
def test_a_simulation_has_the_times_and_the_path_of_a_trace_that_runs_as_planned(name: str) -> None:
    lowered, timeline = make_plan(name, num_micro_batches=8).check()
    start_us, end_us = (dict(enumerate(each)) for each in (timeline.start_us, timeline.end_us))
    traced = TimedSchedule._of(lowered, Measured(start_us, end_us, set()), has_path=True)
    simulated = TimedSchedule.of_timeline(timeline)
    for field in ("start_us", "end_us", "inexact", "awaited", "path", "known"):
        assert getattr(simulated, field).tolist() == getattr(traced, field).tolist(), field
