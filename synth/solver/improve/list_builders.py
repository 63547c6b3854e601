"""The list builder of an instance: compiled code where it can be used, else plain Python."""

from collections.abc import Callable
from typing import Any

from synth.objective import Objective
from synth.solver.evaluate.evaluate import never
from synth.solver.improve.compiled_kernels import are_fast
from synth.solver.improve.compiled_lists import CompiledBuilder
from synth.solver.improve.list_scheduling import Builder, ListBuilder
from synth.solver.instance.instance import Instance


def list_builder(
    instance: Instance,
    objective: Objective,
    *,
    waits: bool = False,
    should_stop: Callable[[], bool] = never,
    must_stop: Callable[[], bool] = never,
) -> ListBuilder[Any]:
    """Return a builder of list schedules; both kinds make the same orders.

    Args:
        objective: of their values.
        waits: wait for code that is being compiled.
        should_stop: ends that wait.
        must_stop: polled by plain Python within a schedule, which then remains unfinished.
    """
    if are_fast(waits=waits, should_stop=should_stop):
        return CompiledBuilder(instance, objective)
    return Builder(instance, objective, must_stop)
