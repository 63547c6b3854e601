"""Published schedules made for lower limits: more memory only adds some."""

from dataclasses import replace

import pytest

from benchmarks.realistic_profiles import realistic_case
from synth.costs.partition_costs import partition_costs
from synth.families import generate
from synth.plan.partition.candidates import equal_cuts
from synth.plan.partition.stage_cost_table import StageCostTable
from synth.schedule.placements import placement
from synth.schedule.verify import verify
from synth.solver.evaluate.evaluate import evaluate
from synth.solver.lower_limits import lower_limits, made_for_lower_limits
from synth.solver.problem import Problem


def problem(seed: int, name: str, factor: float) -> Problem:
    """A generated case on equal layers, with a multiple of its headroom."""
    case = realistic_case(seed, name)
    where = placement(name, case.num_ranks)
    sizes = equal_cuts(StageCostTable(case.profile), where.num_stages)[0]
    costs = partition_costs(case.profile, sizes)
    free = Problem(costs, where, min(16, case.num_micro_batches), partition=sizes)
    statics = map(free.static_bytes, range(free.num_ranks))
    caps = (static + round(factor * (case.limit_bytes - static)) for static in statics)
    return replace(free, caps_bytes=tuple(caps))


def test_a_larger_limit_only_adds_lower_ones() -> None:
    for name in ("linear", "v"):
        less, more = (list(lower_limits(problem(5, name, factor))) for factor in (1.4, 2.0))
        assert 0 < len(less) < len(more) and more[-len(less) :] == less


def test_without_a_limit_there_is_none_below() -> None:
    assert not list(lower_limits(replace(problem(5, "linear", 1.0), caps_bytes=None)))


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "name"), [(5, "linear"), (4, "v")])
def test_schedules_made_for_lower_limits_never_get_worse_with_more_memory(
    seed: int, name: str
) -> None:
    def best_us(factor: float) -> int | None:
        asked = problem(seed, name, factor)
        found = (evaluate(asked, one, label) for label, one in made_for_lower_limits(asked))
        return min((one.value_us for one in found if one is not None), default=None)

    values = [best_us(factor) for factor in (1.2, 1.6, 2.0, 2.4)]
    known = [value for value in values if value is not None]
    assert known and values[len(values) - len(known) :] == sorted(known, reverse=True)


def test_a_greedy_is_slower_with_more_memory() -> None:
    # Why lower limits are tried: ZB's greedy fills the memory that it is given.
    def makespan_us(factor: float) -> int:
        asked = problem(5, "linear", factor)
        made = generate("zb-limit", 8, 16, costs=asked.costs, caps_bytes=asked.caps_bytes)
        return verify(made, asked.costs)[1].makespan_us

    assert makespan_us(1.6) > makespan_us(1.4)
