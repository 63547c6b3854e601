"""The search without a flush: by trying out all orders, by closed forms, beside the families."""

import random
from collections.abc import Iterable
from dataclasses import replace

import pytest

from synth.costs.costs import Costs, uniform_costs
from synth.costs.stage_costs import StageCosts
from synth.errors import SynthError
from synth.op_kinds import OpKind
from synth.profile.links import Link, Links
from synth.schedule.model import Placement
from synth.schedule.placements import placement
from synth.schedule.rank_memory import peak_bytes
from synth.schedule.steady_state import steady_us
from synth.schedule.verify import verify
from synth.schedule.version_facts import version_facts
from synth.search.outcome import StoppedBy
from synth.solver.flush_free.flush_free_problem import Consistency, FlushFreeProblem
from synth.solver.flush_free.search import solve_flush_free
from synth.solver.options import Part, SolveOptions
from synth.solver.problem import Problem
from synth.solver.result import Result
from tests.synth.flush_free_orders import TwoRanks, least_us

F, B, W, BW, STEP = OpKind.F, OpKind.B, OpKind.W, OpKind.BW, OpKind.STEP
# Leaves orders that repeat with every micro-batch.
REPEATING = (Part.MODULO, Part.LIST_SCHEDULING)
RULES = [(rule, 3 if rule == "2bw" else 1) for rule in Consistency]


def costs(
    times: list[tuple[int, int, int]],
    *,
    link_us: int = 0,
    step_us: int = 0,
    saved_w: int = 0,
    output: int = 0,
    parameters: int = 700,
) -> Costs:
    """Stages with F, B and W of these times; 1000 bytes are saved."""
    made = uniform_costs(
        len(times),
        forward_us=1,
        backward_input_us=1,
        backward_weight_us=1,
        saved_bytes=1000,
        saved_w_bytes=saved_w,
        output_bytes=output,
        parameter_bytes=parameters,
        gradient_bytes=parameters,
        static_bytes=4 * parameters,
        links=Links(default=Link(latency_us=link_us)),
    )

    def timed(stage: StageCosts, f: int, b: int, w: int) -> StageCosts:
        us = {F: f, B: b, W: w, BW: b + w, STEP: step_us}
        return stage.replace(duration_us={kind: us.get(kind, 0) for kind in stage.duration_us})

    stages = (timed(stage, *us) for stage, us in zip(made.stages, times, strict=True))
    return made.replace(stages=tuple(stages))


def searched(
    problem: Problem, rule: str, every: int = 1, gap: float = 0.0, without: Iterable[Part] = ()
) -> Result:
    options = SolveOptions(
        time_limit_s=10, gap=gap, deterministic=True, workers=1, without=frozenset(without)
    )
    return solve_flush_free(FlushFreeProblem(problem, Consistency(rule), every), options)


def found_us(result: Result) -> float:
    assert result.steady is not None, result.message
    return result.steady.us


def test_the_least_time_is_that_of_all_orders_tried_out() -> None:
    """Two ranks, unequal stages, slow links, limits of one to four in flight."""
    rng, num_bound = random.Random(3), 0
    for trial in range(12):
        rule, every = RULES[trial % len(RULES)]
        times = [(10 * rng.randint(1, 4), 10 * rng.randint(1, 4), 10 * rng.randint(1, 4))]
        times.append((10 * rng.randint(1, 4), 10 * rng.randint(1, 4), 10 * rng.randint(1, 4)))
        link_us, step_us = 10 * rng.randint(0, 6), rng.choice((0, 6))
        saved_w, parameters = rng.choice((0, 300)), rng.choice((200, 900))
        ranks = TwoRanks(
            tuple(dict(zip("FBW", one, strict=True)) for one in times),  # type: ignore[arg-type]
            step_us=step_us,
            link_us=link_us,
            saved=1000,
            saved_w=saved_w,
            parameters=parameters,
            static=4 * parameters,
        )
        cap = 4 * parameters + rng.choice((1000, 2000, 2600, 3500, 4500)) + parameters
        expected = least_us(ranks, cap, rule, every)
        given = costs(
            times, link_us=link_us, step_us=step_us, saved_w=saved_w, parameters=parameters
        )
        problem = Problem.linear(given, 60, cap)
        result = searched(problem, rule, every, without=REPEATING)
        assert expected is not None and result.steady is not None, (trial, result.message)
        # What is in flight may hit an update more often than once in k: then bound and time differ.
        assert result.steady.us == pytest.approx(expected, rel=2e-5), (trial, rule)
        assert result.steady.lower_bound_us <= result.steady.repeating_us <= expected * (1 + 1e-9)
        work_us = max(sum(one) + step_us / every for one in times)
        num_bound += expected > work_us
    assert num_bound > 3  # else limits and links would not matter


@pytest.mark.parametrize("most", [1, 2, 3, 5])
def test_with_a_limit_on_what_is_in_flight_the_time_is_the_closed_form(most: int) -> None:
    """max(F + B + W, (n (F + B) + 2 (n − 1) c) / K): W's are not on the way.

    With 3 in flight an order that repeats with every micro-batch takes 600: F and B of stage 1
    would both run from 200 on. One that repeats after three takes 1400.
    """
    given = costs([(100, 100, 100)] * 4, link_us=100)
    cap = given.stages[0].static_bytes + 1000 * most
    result = searched(Problem.linear(given, 60, cap), "none")
    expected = max(300, (4 * 200 + 6 * 100) / most)
    assert found_us(result) == pytest.approx(expected, rel=1e-5)
    assert result.steady is not None and result.stopped_by == StoppedBy.OPTIMAL
    assert result.steady.lower_bound_us == pytest.approx(expected)
    repeating_us = 600 if most == 3 else expected
    assert result.steady.repeating_us == pytest.approx(repeating_us, rel=2e-5)


def test_two_versions_with_b_and_w_apart_are_faster_than_2bw_in_less_memory() -> None:
    """2BW takes (4 · 300 + 6 · 100) / 4 = 450, as its W's are on the way; it has 4 in flight."""
    given = costs([(100, 100, 100)] * 4, link_us=100)
    static = given.stages[0].static_bytes
    result = searched(Problem.linear(given, 48, static + 700 + 4000), "2bw", 8)
    assert result.steady is not None
    assert [(one.name, one.us, one.fits) for one in result.steady.baselines] == [
        ("2bw:every=8", 450, True)
    ]
    assert found_us(result) == pytest.approx(350)  # (4 · 200 + 600) / 4
    less = searched(Problem.linear(given, 48, static + 700 + 3000), "2bw", 8)
    assert less.steady is not None and not less.steady.baselines[0].fits
    assert found_us(less) == pytest.approx(1400 / 3, rel=1e-5)
    assert less.steady.repeating_us == pytest.approx(600, rel=2e-5)


def _unequal(rng: random.Random, n: int) -> Costs:
    times = [(rng.randint(50, 150), rng.randint(50, 150), rng.randint(20, 120)) for _ in range(n)]
    made = costs(
        times,
        link_us=rng.randint(0, 120),
        step_us=rng.choice((0, 15)),
        saved_w=rng.choice((0, 400)),
        output=rng.choice((0, 30)),
        parameters=rng.choice((100, 700)),
    )
    faster = (
        stage.replace(
            duration_us={**stage.duration_us, BW: stage.duration_us[BW] - rng.choice((0, 10))}
        )
        for stage in made.stages
    )
    return made.replace(stages=tuple(faster))


@pytest.mark.parametrize(("rule", "every"), RULES)
def test_no_published_schedule_that_fits_is_faster_and_none_beats_the_bound(
    rule: str, every: int
) -> None:
    rng = random.Random(f"{rule}")
    for share in (0.5, 0.75, 1.0, 1.0):
        n = rng.choice((2, 3, 4))
        given, every = _unequal(rng, n), max(every, n) if rule == "2bw" else every
        m = 24 * every
        free = Problem.linear(given, m)
        peaks = [
            max(peak_bytes(verify(one, given)[0]))
            for one in FlushFreeProblem(free, Consistency(rule), every).published()
        ]
        low = max(stage.static_bytes for stage in given.stages) + 1100 + 2 * 700
        cap = round(low + share * (max(peaks) - low)) if max(peaks) > low else max(peaks)
        problem = Problem.linear(given, m, cap)
        result = searched(problem, rule, every, gap=0.003, without=REPEATING)
        assert result.schedule is not None and result.steady is not None, result.message
        _, line = verify(result.schedule, given, problem.caps_bytes)
        assert steady_us(line) == result.steady.us
        for baseline in result.steady.baselines:
            if baseline.fits and baseline.us is not None:
                assert result.steady.us <= baseline.us
                assert result.steady.repeating_us <= baseline.us


@pytest.mark.parametrize(("rule", "every"), [("2bw", 8), *RULES[1:]])
def test_on_slow_links_every_rule_is_faster_than_its_published_schedules(
    rule: str, every: int
) -> None:
    """(4 · 300 + 6 · 200) / 4 = 600 with 1F1B's order; without a limit 300, the work of a rank."""
    result = searched(Problem.linear(costs([(100, 100, 100)] * 4, link_us=200), 96), rule, every)
    assert result.steady is not None and result.stopped_by == StoppedBy.OPTIMAL
    assert found_us(result) == pytest.approx(300)
    of_1f1b = [one.us for one in result.steady.baselines if one.name != "delayed-update"]
    assert of_1f1b == [pytest.approx(600)]
    assert all(one.us is not None and one.us > 300 for one in result.steady.baselines)


def test_it_finds_as_much_where_it_is_told_of_no_published_schedule(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = _unequal(random.Random(5), 4)
    problem = Problem.linear(given, 48)
    told = searched(problem, "stash", gap=0.003)
    monkeypatch.setattr(FlushFreeProblem, "published", lambda _: [])
    alone = searched(problem, "stash", gap=0.003)
    assert found_us(alone) <= found_us(told) * 1.003 and alone.found_by == "modulo scheduling"


def test_ranks_with_several_stages_repeat_too() -> None:
    given = costs([(60, 60, 40), (40, 50, 50), (70, 40, 30), (30, 60, 60)], link_us=30)
    where = placement("v", 2)
    problem = Problem(given, where, 48)
    result = searched(problem, "2bw", 8)
    assert result.stopped_by == StoppedBy.OPTIMAL
    assert found_us(result) == pytest.approx(310)  # stages 0 and 3
    tight = searched(replace(problem, caps_bytes=(5600 + 1400 + 3000,) * 2), "2bw", 8)
    assert tight.schedule is not None and tight.steady is not None
    assert tight.steady.us >= tight.steady.lower_bound_us >= 310


def test_a_limit_that_holds_no_micro_batch_is_refused_with_one_that_does() -> None:
    given = costs([(100, 100, 100)] * 2, saved_w=1000)
    result = searched(Problem.linear(given, 24, 4000), "2bw", 4)
    assert result.stopped_by == StoppedBy.NOTHING_BETTER and result.schedule is None
    assert result.message is not None and "give §mem_limit 4500B" in result.message
    assert "no order that repeats with every micro-batch fits" in result.message
    refuted = searched(Problem.linear(given, 24, 3500), "stash")
    assert refuted.stopped_by == StoppedBy.INFEASIBLE and refuted.message is not None
    assert "no schedule fits" in refuted.message
    assert searched(Problem.linear(given, 24, 4500), "2bw", 4).schedule is not None


def test_w_s_that_are_late_by_an_update_save_the_second_version() -> None:
    """They hold nothing here, so in 4000 bytes each B of a batch comes before the update before."""
    given = costs([(100, 100, 100)] * 2)
    result = searched(Problem.linear(given, 24, 4000), "2bw", 4, without=REPEATING)
    assert result.schedule is not None
    lowered, _ = verify(result.schedule, given, (4000, 4000))
    assert [one.alive for one in version_facts(lowered)] == [1, 1]


def test_too_few_micro_batches_name_the_number_needed() -> None:
    given = costs([(100, 100, 100)] * 4, link_us=100)
    result = searched(Problem.linear(given, 6), "stash")
    assert result.schedule is None and result.message is not None
    needed = int(result.message.split("§micro_batches ")[1].split()[0])
    assert searched(Problem.linear(given, needed), "stash").schedule is not None


@pytest.mark.parametrize(
    ("where", "rule", "every", "message"),
    [
        (placement("bidirectional", 2), "2bw", 2, "is for one copy of each stage"),
        (Placement.linear(2), "stash", 2, "updates after every micro-batch"),
        (Placement.linear(2), "2bw", 5, "every 5 micro-batches does not divide 12"),
        (Placement.linear(2), "2bw", 12, "at least two updates, .* give --micro-batches 24"),
    ],
)
def test_rules_that_do_not_go_with_a_problem_are_refused(
    where: Placement, rule: str, every: int, message: str
) -> None:
    problem = Problem(costs([(1, 1, 1)] * 2), where, 12)
    with pytest.raises(SynthError, match=message):
        FlushFreeProblem(problem, Consistency(rule), every)


def test_by_default_2bw_has_two_updates_or_names_the_micro_batches_that_make_them() -> None:
    given = costs([(100, 100, 100)] * 4)
    made = FlushFreeProblem.parse("2bw", Problem.linear(given, 48))
    assert made.every < 48 and made.name == f"2bw:every={made.every}"
    with pytest.raises(SynthError, match="7 micro-batches cannot be divided so") as refused:
        FlushFreeProblem.parse("2bw", Problem.linear(given, 7))
    needed = int(str(refused.value).split("--micro-batches ")[1].split(",")[0])
    enough = FlushFreeProblem.parse("2bw", Problem.linear(given, needed))
    assert needed >= 2 * enough.every
    for few in range(8, needed):
        with pytest.raises(SynthError, match="cannot be divided so"):
            FlushFreeProblem.parse("2bw", Problem.linear(given, few))


def test_a_choice_is_written_as_it_is_read() -> None:
    problem = Problem.linear(costs([(1, 1, 1)] * 2), 24)
    for text in ("2bw:every=1", "2bw:every=8", "stash", "none", "none:every=8"):
        assert FlushFreeProblem.parse(text, problem).name == text
    for text in (f"2bw:every={'9' * 5000}", "2bw:every=0", "2bw:every=", "2bw:", "none:every=²"):
        with pytest.raises(SynthError, match="not understood"):
            FlushFreeProblem.parse(text, problem)


@pytest.mark.parametrize("rule", ["stash", "vertical"])
def test_one_rank_is_always_busy(rule: str) -> None:
    result = searched(Problem.linear(costs([(10, 20, 30)]), 12), rule)
    assert result.stopped_by == StoppedBy.OPTIMAL and found_us(result) == pytest.approx(60)
