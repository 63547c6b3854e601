"""Traces: rank logs join to one execution trace, which survives the file."""

from pathlib import Path

import pytest

from synth.errors import Mismatch, SynthError
from synth.families import generate
from synth.profile import Profile
from synth.profiles import find
from synth.schedule.files.plan_file import Plan
from synth.schedule.lowering.lower import Transfer, lower
from synth.schedule.measured.execution_trace import (
    CommunicationSpan,
    ExecutionTrace,
    OpSpan,
    planned_execution,
)
from synth.schedule.measured.rank_log import RankLog, Ready, Wait, in_turns, join_logs
from synth.schedule.measured.trace_file import Source, Trace, TracedStep
from synth.schedule.ops import Op, Value, ValueKind
from synth.schedule.simulate import simulate

SENT = Transfer(Value(ValueKind.ACT, 0, 3), 0, 1, 512, 20)
F0, F1 = Op.parse("F0.3"), Op.parse("F1.3")


def make_plan(name: str = "zb-h1", num_micro_batches: int = 4) -> Plan:
    profile = Profile.load(find("zb-1.5b-p8-m24"))
    return Plan.of(profile, [6] * 4, generate(name, 4, num_micro_batches))


def chart_of(plan: Plan) -> ExecutionTrace:
    return planned_execution(simulate(lower(plan.schedule(), plan.costs)))


def transfer_span(*, sent: int, posted: int, waits: dict[int, Wait]) -> CommunicationSpan:
    """The span of one transfer from rank 0 to rank 1, whose clocks began 1 ms apart."""
    log = [
        RankLog(5_000_000, [], [Ready(SENT, sent)], [waits[0]] if 0 in waits else []),
        RankLog(6_000_000, [], [Ready(SENT, posted)], [waits[1]] if 1 in waits else []),
    ]
    return join_logs(log).communications[0]


def test_ranks_are_laid_on_the_clock_of_the_first_to_begin() -> None:
    log = [RankLog(6_000_000, [OpSpan(F0, 0, 10)]), RankLog(5_000_000, [OpSpan(F1, 0, 10)])]
    assert join_logs(log).ops == [[OpSpan(F0, 1000, 1010)], [OpSpan(F1, 0, 10)]]


def test_what_ran_at_once_takes_turns_in_the_time_of_both() -> None:
    # F ran for 30 of 0 to 60 and BW for 60: a third of the time is the turn of F.
    f, bw, w = map(Op.parse, ("F0.3", "BW0.1", "W0.0"))
    spans = [OpSpan(w, -5, 0), OpSpan(f, 0, 30), OpSpan(bw, 0, 60), OpSpan(w, 60, 70)]
    turns = [OpSpan(w, -5, 0), OpSpan(f, 0, 20), OpSpan(bw, 20, 60), OpSpan(w, 60, 70)]
    assert in_turns(spans) == turns
    assert in_turns(turns) == turns
    longer = in_turns([OpSpan(f, 10, 50), OpSpan(bw, 0, 40)])
    assert longer == [OpSpan(f, 0, 25), OpSpan(bw, 25, 50)]


@pytest.mark.parametrize(("sent", "posted", "start"), [(1500, 300, 1500), (1200, 700, 1700)])
def test_a_transfer_starts_when_both_ends_are_ready(sent: int, posted: int, start: int) -> None:
    found = transfer_span(sent=sent, posted=posted, waits={1: Wait(SENT, 650, 900, True)})
    assert found == CommunicationSpan(SENT, start, 1900, exact=True)


def test_a_transfer_that_held_nobody_up_was_over_when_it_was_asked_for() -> None:
    found = transfer_span(sent=100, posted=0, waits={1: Wait(SENT, 800, 950, False)})
    assert found == CommunicationSpan(SENT, 1000, 1800, exact=False)


def test_the_receivers_wait_counts_before_the_senders() -> None:
    # The sender may only have waited for a copy into a buffer.
    waits = {0: Wait(SENT, 1100, 1200, True), 1: Wait(SENT, 200, 400, True)}
    assert transfer_span(sent=1000, posted=0, waits=waits).end_us == 1400
    waits[1] = Wait(SENT, 900, 910, False)
    assert transfer_span(sent=1000, posted=0, waits=waits) == CommunicationSpan(SENT, 1000, 1200)


@pytest.mark.parametrize("name", ["zb-h1", "chimera"])
def test_a_chart_survives_the_file(tmp_path: Path, name: str) -> None:
    plan = make_plan(name)
    execution = chart_of(plan)
    trace = Trace.of(plan, Source.SIMULATED, [TracedStep.of(execution, 7, 123.4)])
    trace.save(tmp_path / "trace.json")
    found = Trace.load(tmp_path / "trace.json")
    assert found == trace
    assert (found.steps[0].step, found.steps[0].step_us) == (7, 123)
    assert found.steps[0].execution() == execution
    found.check_of(plan)


def test_a_trace_of_another_schedule_is_refused() -> None:
    trace = Trace.of(make_plan("zb-h1"), Source.SIMULATED, [])
    with pytest.raises(Mismatch, match=r"plan 'zb-h1' .* is not that of '1f1b'"):
        trace.check_of(make_plan("1f1b"))


@pytest.mark.parametrize(("old", "new"), [("F0.0", "X0.0"), ("act(0, 0)", "art(0, 0)")])
def test_a_trace_with_an_unknown_name_is_refused(old: str, new: str) -> None:
    plan = make_plan()
    text = Trace.of(plan, Source.SIMULATED, [TracedStep.of(chart_of(plan), 0, 0)]).to_json()
    with pytest.raises(SynthError, match="is not understood"):
        Trace.from_json(text.replace(old, new, 1))
