"""The time per micro-batch of a full pipeline: its closed form, and the simulation."""

import random
from dataclasses import replace

import pytest

from synth.costs.costs import Costs, uniform_costs
from synth.errors import SynthError
from synth.families import generate
from synth.op_kinds import OpKind
from synth.profile.links import Link, Links
from synth.schedule.model import Buffering
from synth.schedule.ops import Op
from synth.schedule.simulate import Timeline, simulate
from synth.schedule.steady_state import least_steady_us, steady_us
from synth.schedule.verify import lower_checked
from synth.solver.flush_free.flush_free_problem import Consistency, FlushFreeProblem
from synth.solver.problem import Problem

F, B, W, BW = OpKind.F, OpKind.B, OpKind.W, OpKind.BW


def costs(
    n: int, link_us: int, *, slow: int | None = None, step_us: int = 0, times: int = 2
) -> Costs:
    """F = 100, BW = 200 on all stages; `times` as long on one of them."""
    made = uniform_costs(
        n,
        forward_us=100,
        backward_input_us=100,
        backward_weight_us=100,
        links=Links(default=Link(latency_us=link_us)),
    )
    stages = [
        stage.replace(
            duration_us={
                kind: us * (times if s == slow else 1) if kind != OpKind.STEP else step_us
                for kind, us in stage.duration_us.items()
            }
        )
        for s, stage in enumerate(made.stages)
    ]
    return made.replace(stages=tuple(stages))


@pytest.mark.parametrize("name", ["pipedream", "2bw", "paci"])
@pytest.mark.parametrize("slow", [None, 0, 1])
@pytest.mark.parametrize("link_us", [0, 20, 100])
@pytest.mark.parametrize("n", [2, 4, 8])
def test_the_time_per_micro_batch_is_the_closed_form(
    n: int, link_us: int, slow: int | None, name: str
) -> None:
    """max(max_s(F + B), (Σ(F + B) + 2 (n − 1) c) / n), as 1F1B has n in flight on stage 0."""
    m = 12 * n
    made = replace(generate(name, n, m), buffering=Buffering(m, 3 * m))
    line = simulate(lower_checked(made, costs(n, link_us, slow=slow)))
    total_us = 300 * n + (300 if slow is not None else 0)
    most_us = 300 if slow is None else 600
    expected = max(most_us, (total_us + 2 * (n - 1) * link_us) / n)
    assert steady_us(line) == pytest.approx(expected)
    assert least_steady_us(line.lowered) == pytest.approx(expected)


def test_the_family_chooses_buffers_that_keep_it() -> None:
    given = costs(8, 100)
    line = simulate(lower_checked(generate("2bw", 8, 96, costs=given), given))
    assert steady_us(line) == pytest.approx(475)  # 300 + 2 · 7 · 100 / 8


def test_an_update_after_every_micro_batch_costs_its_time_in_each() -> None:
    for name, expected in (("pipedream", 340), ("2bw:every=4", 310)):
        given = costs(4, 0, step_us=40)
        line = simulate(lower_checked(generate(name, 4, 48, costs=given), given))
        assert steady_us(line) == pytest.approx(expected)
        assert least_steady_us(line.lowered) == pytest.approx(expected)


def test_a_schedule_that_flushes_or_is_never_full_has_none() -> None:
    given = costs(4, 0)
    flushing = simulate(lower_checked(generate("1f1b", 4, 48), given))
    short = simulate(lower_checked(generate("2bw", 4, 8), given))
    assert steady_us(flushing) is None and least_steady_us(flushing.lowered) is None
    assert steady_us(short) is None


@pytest.mark.parametrize("name", ["2bw", "paci", "2bw:every=24", "paci:every=12"])
def test_a_time_is_of_whole_updates_and_no_less_than_the_bound(name: str) -> None:
    """A STEP that takes long must not fall between the micro-batches that are measured."""
    for n, m in ((1, 24), (3, 24), (4, 12), (5, 24), (5, 96)):
        given = costs(n, 3, step_us=1000)
        try:
            line = simulate(lower_checked(generate(name, n, m, costs=given), given))
        except SynthError:
            continue  # the family needs other numbers
        found_us, least_us = steady_us(line), least_steady_us(line.lowered)
        assert least_us is not None
        assert found_us is None or found_us >= least_us - 1e-9


def _scaled(given: Costs, times: list[tuple[int, int, int]]) -> Costs:
    stages = (
        stage.replace(duration_us={**stage.duration_us, F: f, B: b, W: w, BW: b + w})
        for stage, (f, b, w) in zip(given.stages, times, strict=True)
    )
    return given.replace(stages=tuple(stages))


def test_a_schedule_that_runs_ahead_while_buffers_fill_has_the_time_of_the_long_run() -> None:
    """(124 + 126 + 2 · 121) / 3 = 164, from stage 1 on, where 3 are in flight."""
    times = [(25, 23, 19), (49, 53, 22), (29, 52, 45)]
    given = _scaled(costs(3, 121), times)
    made = generate("delayed-update", 3, 48, costs=given)
    line = simulate(lower_checked(made, given))
    assert steady_us(line) == pytest.approx(164)


def test_stages_that_fuse_b_and_w_and_others_that_do_not_have_a_bound_that_holds() -> None:
    """Two stages with B and W apart, and one with BW: 5 in flight do not wait for W's."""
    given = _scaled(costs(3, 100), [(60, 60, 40), (60, 60, 40), (70, 60, 40)])
    programs = []
    for stage, in_flight in enumerate((5, 3, 1)):
        kinds = (BW,) if stage == 2 else (B, W)
        program = [Op(F, stage, j) for j in range(in_flight - 1)]
        for j in range(48):
            program += [Op(F, stage, i) for i in (j + in_flight - 1,) if i < 48]
            program += [Op(kind, stage, j) for kind in kinds]
        programs.append(tuple(program))
    asked = FlushFreeProblem(Problem.linear(given, 48), Consistency.NONE, 1)
    line = simulate(lower_checked(asked.schedule(programs, Buffering(48, 144)), given))
    found_us = steady_us(line)
    assert least_steady_us(line.lowered) == pytest.approx(max(170, (120 + 120 + 170 + 400) / 5))
    assert found_us is not None and 170 <= found_us < (160 + 160 + 170 + 400) / 5


def test_an_order_that_is_repeated_nowhere_has_no_steady_time() -> None:
    """Its last four F's and BW's are like its first four by chance, and one pair between is not."""
    regular = generate("delayed-update", 2, 12)
    kinds = "FF" + 4 * "BF" + "FB" + 5 * "BF" + "BB"
    numbers = {"F": iter(range(12)), "B": iter(range(12))}
    first: list[Op] = []
    for kind in kinds:
        j = next(numbers[kind])
        first.append(Op(OpKind.F if kind == "F" else OpKind.BW, 0, j))
        first += [Op(OpKind.STEP, 0, j)] if kind == "B" else []
    irregular = replace(regular, programs=(tuple(first), regular.programs[1]))
    assert steady_us(simulate(lower_checked(regular, costs(2, 0)))) == 300
    assert steady_us(simulate(lower_checked(irregular, costs(2, 0)))) is None


def _late_us(line: Timeline, first: int, last: int) -> float:
    """The simulated time per micro-batch between two backwards of the first stage."""
    ends = {
        op.microbatch: line.end_us[place]
        for place, op in enumerate(line.lowered.ops[0])
        if op.kind in (B, BW) and op.stage == 0
    }
    return (ends[last] - ends[first]) / (last - first)


@pytest.mark.parametrize("name", ["pipedream", "2bw:every=4", "delayed-update", "paci:every=4"])
def test_the_time_of_a_short_plan_is_that_of_a_long_one_simulated(name: str) -> None:
    """Unequal stages, slow links, few buffers.

    With an update after several micro-batches, short plans' own times are transients at times.
    """
    rng, num_transient = random.Random(name), 0
    for _ in range(12):
        times = [(rng.randint(20, 90), rng.randint(20, 90), rng.randint(0, 60)) for _ in range(3)]
        given = _scaled(costs(3, rng.randint(0, 150), step_us=rng.choice((0, 25))), times)
        buffering = Buffering(rng.randint(0, 3), rng.randint(1, 4))
        short, long = (
            simulate(lower_checked(replace(generate(name, 3, m), buffering=buffering), given))
            for m in (28, 300)
        )
        expected = _late_us(long, 160, 280)
        assert steady_us(short) == pytest.approx(expected, rel=1e-9)
        num_transient += abs(_late_us(short, 8, 20) - expected) > 0.01
    assert num_transient > 0 or "every" not in name
