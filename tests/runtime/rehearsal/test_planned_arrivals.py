"""Rehearsed ranks whose inputs arrive when the plan says, an emulation of the other ranks' pace."""

from typing import Any

import pytest

from synth.families import generate
from synth.profile.links import Link, Links
from synth.report.explain.rehearsal import RehearsedRank, steps_text, waited_us
from synth.run_options.train_options import TrainOptions
from synth.runtime.execution.program.tracer import LoggedStep
from synth.runtime.rehearsal import rehearse
from synth.schedule.files.plan_file import Plan
from synth.schedule.lowering.lower import Lowered, Transfer
from synth.schedule.measured.execution_trace import planned_execution
from synth.schedule.ops import Value
from synth.schedule.simulate import simulate
from tests.runtime.rehearsal.test_rehearse import CPU, plan_of, profiled

pytestmark = pytest.mark.slow

# Ops of the tiny model take less.
SLOW_US = 30_000


def slow_plan(**workload: Any) -> Plan:
    """1F1B of two ranks, whose link takes longer than their ops."""
    profile = profiled(**workload).replace(links=Links(default=Link(latency_us=float(SLOW_US))))
    return Plan.of(profile, plan_of("1f1b", 2, **workload).partition, generate("1f1b", 2, 4))


def traced_step(plan: Plan, lowered: Lowered, rank: int, **options: Any) -> LoggedStep:
    """The one timed step of a rank."""
    [step] = rehearse(plan, lowered, TrainOptions(steps=3), CPU, ranks=[rank], **options)[
        rank
    ].traced
    return step


def arrivals_us(lowered: Lowered, rank: int) -> dict[Value, int]:
    return {
        span.communication.value: span.end_us
        for span in planned_execution(simulate(lowered)).communications
        if isinstance(span.communication, Transfer) and span.communication.target == rank
    }


def starts_us(lowered: Lowered, step: LoggedStep) -> dict[Value, int]:
    """The start of the op that reads a value first."""
    return {
        value: span.start_us
        for span in reversed(step.log.ops)
        for value in lowered.effects.reads(span.op)
    }


@pytest.mark.parametrize("rank", [0, 1])
def test_no_op_runs_before_its_input_has_arrived_as_planned(rank: int) -> None:
    plan = slow_plan()
    lowered = plan.check()[0]
    due_us = arrivals_us(lowered, rank)
    step = traced_step(plan, lowered, rank, planned_arrivals=True)
    assert [span.op for span in step.log.ops] == list(lowered.ops[rank])
    found_us = starts_us(lowered, step)
    assert len(due_us) == 4
    assert all(found_us[value] >= due_us[value] for value in due_us)
    assert step.step_us >= max(due_us.values())
    # Rank 0 waits for a first gradient, rank 1 for a first activation.
    assert waited_us(rank, [step.log.waits]) > SLOW_US / 2


def test_without_them_everything_is_there_at_once() -> None:
    plan = slow_plan()
    lowered = plan.check()[0]
    step = traced_step(plan, lowered, 1)
    assert waited_us(1, [step.log.waits]) < SLOW_US / 2


def test_steps_that_are_validated_later_wait_from_the_end_of_the_one_before() -> None:
    """Rank 1 begins while rank 0 is still in the iteration before, so its input comes later."""
    plan = slow_plan(optimizer="adamw+post-validation")
    lowered = plan.check()[0]
    timeline = simulate(lowered)
    early_us = -timeline.begin_us(1, late=True)
    assert early_us > 0
    due_us = arrivals_us(lowered, 1)
    found_us = starts_us(lowered, traced_step(plan, lowered, 1, planned_arrivals=True))
    assert all(found_us[value] >= due_us[value] + early_us for value in due_us)


def test_the_table_has_the_ends_of_the_last_ops_and_the_waits() -> None:
    plan = slow_plan()
    lowered = plan.check()[0]
    step = traced_step(plan, lowered, 1, planned_arrivals=True)
    rank = RehearsedRank([step.log.ops], 1, waited_us=waited_us(1, [step.log.waits]))
    line = steps_text(lowered, {1: rank}, late=False).splitlines()[-1]
    planned_ms, found_ms, waited_ms = map(float, line.split()[1:])
    last_us = max(arrivals_us(lowered, 1).values())
    assert min(planned_ms, found_ms) > last_us / 1000
    assert SLOW_US / 2000 < waited_ms < found_ms
