"""Published schedules with B and W apart, as first incumbents."""

import pytest

from benchmarks.solver.suites import bidirectional, table
from synth.families import generate
from synth.op_kinds import OpKind
from synth.schedule.placements import placement
from synth.solver.evaluate import evaluate
from synth.solver.options import Part, SolveOptions
from synth.solver.solver import solve


def test_a_published_schedule_with_b_and_w_apart_sends_its_gradients_sooner() -> None:
    problem = bidirectional.problem("bidirectional", 4, 8, split=True)
    chimera = generate("chimera", 4, 8, costs=problem.costs)
    whole = evaluate.evaluate(problem, chimera, "chimera")
    assert whole is not None
    apart = evaluate.split_backward(problem, whole)
    assert apart is not None
    assert apart.value_us < whole.value_us
    assert apart.found_by == "chimera, B and W apart"
    for program, longer in zip(chimera.programs, apart.schedule.programs, strict=True):
        fused = [op for op in longer if op.kind != OpKind.W]
        assert [op._replace(kind=OpKind.BW) if op.kind == OpKind.B else op for op in fused] == [
            *program
        ]


def test_there_is_nothing_to_divide_where_b_and_w_are_apart() -> None:
    problem = table.problem(4, 8, 1)
    zb_h1 = evaluate.evaluate(problem, generate("zb-h1", 4, 8, costs=problem.costs), "zb-h1")
    assert zb_h1 is not None
    assert evaluate.split_backward(problem, zb_h1) is None


@pytest.mark.parametrize("name", ["bidirectional", "bidirectional-v"])
def test_the_search_starts_from_the_better_of_the_two(name: str) -> None:
    problem = bidirectional.problem(name, 4, 8, split=True)
    assert problem.placement == placement(name, 4)
    without = frozenset(Part) - {Part.FAMILIES, Part.SIMPLIFICATION, Part.CLOSED_FORMS}
    result = solve(problem, SolveOptions(time_limit_s=2, without=without))
    fitting = [baseline.makespan_us for baseline in result.baselines if baseline.fits]
    assert result.value_us is not None
    assert result.value_us < min(fitting)
    assert str(result.found_by).endswith("B and W apart")
