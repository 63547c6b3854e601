"""Recomputation in the search: R merged into B, written out, and bounded wherever it stands."""

import random
import threading
from dataclasses import replace
from itertools import combinations

import pytest

from synth.costs.costs import Costs, uniform_costs
from synth.costs.merged_recomputation import merged
from synth.costs.partition_costs import partition_costs
from synth.errors import SynthError
from synth.families import generate
from synth.objective import Objective
from synth.op_kinds import OpKind
from synth.plan.choose.candidates import Candidate
from synth.plan.memory_curve.curve_file import knowledge_of
from synth.plan.memory_curve.curve_search import Effort, trace
from synth.plan.memory_curve.least_cap_search import least_cap
from synth.plan.memory_curve.target import TimeTarget
from synth.plan.recompute.choice import limits_bytes, solve_with
from synth.plan.recompute.choice_proof import ChoiceProof
from synth.plan.recompute.choice_search import solve_choosing
from synth.plan.recompute.given_stages import solve_recomputing
from synth.plan.recompute.stages import bounds, bounds_of_any_choice
from synth.plan.search_space import OneCandidate
from synth.profile import Profile, Provenance
from synth.profile.layer_profile import Layer, LayerProfile, Timing
from synth.profile.workload import Workload
from synth.schedule.model import Buffering, Placement, Schedule
from synth.schedule.ops import Op
from synth.schedule.placements import placement
from synth.schedule.rank_memory import peak_bytes
from synth.schedule.recomputed_stages import recomputed, without_recompute, written_out
from synth.schedule.verify import ScheduleError, verify
from synth.search.outcome import StoppedBy
from synth.solver.infeasibility import needed_bytes
from synth.solver.options import SolveOptions
from synth.solver.problem import Problem
from synth.solver.result import Incumbent
from synth.solver.solver import solve
from synth.solver.watch import SolveWatch
from tests.synth.effort import HOURS_S, counted
from tests.synth.plain import random_costs, random_schedule


def test_written_out_a_schedule_keeps_to_what_the_search_counted() -> None:
    compared = 0
    for seed in range(400):
        draw = random.Random(seed)
        schedule = random_schedule(draw, keeping=True)
        num_stages = schedule.placement.num_stages
        costs = random_costs(draw, num_stages, schedule.num_ranks)
        stages = [stage for stage in range(num_stages) if draw.random() < 0.6]
        longer = written_out(schedule, stages)
        assert without_recompute(longer) == schedule
        try:
            seen, _ = verify(schedule, merged(costs, stages))
            true, _ = verify(longer, costs)
        except ScheduleError:
            continue
        compared += 1
        assert recomputed(longer) == stages
        for found, sought in zip(peak_bytes(true), peak_bytes(seen), strict=True):
            assert found <= sought
    assert compared > 150


def test_without_transfers_and_waits_both_take_the_same_time() -> None:
    costs = uniform_costs(1, forward_us=3, backward_input_us=4, backward_weight_us=2)
    ops = tuple(Op.parse(token) for token in ["F0.0", "F0.1", "B0.0", "W0.0", "BW0.1"])
    schedule = Schedule(Placement.linear(1), 2, (ops,))
    _, seen = verify(schedule, merged(costs, {0}))
    _, true = verify(written_out(schedule, {0}), costs)
    assert seen.makespan_us == true.makespan_us == 3 + 3 + (3 + 4) + 2 + (3 + 6)


def every_order(count: int, with_r: bool) -> list[tuple[tuple[OpKind, int], ...]]:
    """All orders of one stage's ops: every micro-batch its F, R, B, W, micro-batches in order."""
    kinds = [OpKind.F, *([OpKind.R] if with_r else []), OpKind.B, OpKind.W]

    def extend(done: tuple[int, ...]) -> list[tuple[tuple[OpKind, int], ...]]:
        if all(k == count for k in done):
            return [()]
        found = []
        for i, kind in enumerate(kinds):
            if done[i] < count and (i == 0 or done[i] < done[i - 1]):
                after = (*done[:i], done[i] + 1, *done[i + 1 :])
                found += [((kind, done[i]), *rest) for rest in extend(after)]
        return found

    return extend((0,) * len(kinds))


@pytest.mark.parametrize("seed", range(6))
def test_no_order_of_r_and_the_rest_beats_the_bounds(seed: int) -> None:
    draw = random.Random(seed)
    costs = random_costs(draw, 2, 2)
    stages = [stage for stage in range(2) if draw.random() < 0.7]
    orders = [every_order(2, stage in stages) for stage in range(2)]
    problem = Problem.linear(costs, 2)
    peaks, values = [], []
    for first in orders[0]:
        for second in draw.sample(orders[1], min(20, len(orders[1]))):
            programs = tuple(
                tuple(Op(kind, stage, k) for kind, k in order)
                for stage, order in enumerate((first, second))
            )
            schedule = Schedule(problem.placement, 2, programs, "any", Buffering(1, 2))
            try:
                lowered, timeline = verify(schedule, costs)
            except ScheduleError:
                continue
            peaks.append(max(peak_bytes(lowered)))
            values.append(timeline)
    cap = sorted(peaks)[len(peaks) // 3]
    capped = Problem.linear(costs, 2, cap)
    bound, of_any = bounds(capped, stages), bounds_of_any_choice(capped)
    fitting = [t for peak, t in zip(peaks, values, strict=True) if peak <= cap]
    assert fitting
    assert bound.makespan_us <= min(t.makespan_us for t in fitting)
    assert bound.period_us <= min(t.period_us for t in fitting)
    assert of_any.makespan_us <= bound.makespan_us and of_any.period_us <= bound.period_us
    best_us = min(t.makespan_us for t in fitting)
    proof = ChoiceProof(capped, counted(0.5), lambda: 2 * best_us, lambda: False)
    assert all(proven.bound_us <= best_us for proven in proof.prove(0.5))


# Stage 1 is the first one of a rank and the second one of another.
@pytest.mark.parametrize(
    ("seed", "ranks"),
    [
        (19, ((0, 1, 1, 0), (0, 0, 0, 1))),
        (28, ((1, 1, 2, 1), (1, 1, 0, 0))),
        (187, ((0, 1, 0, 0), (1, 0, 2, 0))),
    ],
)
def test_the_bound_of_any_choice_is_no_higher_than_that_of_one_where_copies_are_placed_unlike(
    seed: int, ranks: tuple[tuple[int, ...], ...]
) -> None:
    draw, where = random.Random(seed), Placement(ranks)
    problem = Problem(random_costs(draw, 4, where.num_ranks), where, 4)
    needs = needed_bytes(replace(problem, costs=merged(problem.costs, range(4))))
    caps = tuple(int(draw.uniform(1, 1.2) * need) + 1 for need in needs)
    capped = replace(problem, caps_bytes=caps)
    any_us = capped.objective.value_us(bounds_of_any_choice(capped))
    choices = (stages for count in range(5) for stages in combinations(range(4), count))
    assert any_us <= min(capped.objective.value_us(bounds(capped, one)) for one in choices)


def tight_problem(where: Placement, cap_bytes: int) -> Problem:
    """F keeps much more than a boundary tensor."""
    costs: Costs = uniform_costs(
        where.num_stages,
        forward_us=10,
        backward_input_us=11,
        backward_weight_us=9,
        saved_bytes=40,
        saved_w_bytes=20,
        output_bytes=2,
    )
    caps = (cap_bytes,) * where.num_ranks
    return Problem(costs, where, 8, caps, Objective.MAKESPAN)


@pytest.mark.parametrize(("name", "cap_bytes"), [("linear", 100), ("v", 82)])
def test_where_memory_is_short_recomputing_does_what_nothing_else_can(
    name: str, cap_bytes: int
) -> None:
    # On the line everything kept is proven to take 420 at least, on the V not to fit at all.
    problem = tight_problem(placement(name, 4), cap_bytes)
    plain, stop = solve(problem, counted()), threading.Event()
    assert plain.stopped_by == (StoppedBy.INFEASIBLE if name == "v" else StoppedBy.OPTIMAL)
    unreached_us = plain.value_us or 10**9

    def stop_when_faster(incumbent: Incumbent) -> None:
        if incumbent.value_us < unreached_us:
            stop.set()

    options = SolveOptions(time_limit_s=HOURS_S / 6, workers=1)
    choosing = solve_choosing(problem, options, SolveWatch(stop_when_faster, stop))
    assert choosing.schedule is not None and choosing.value_us is not None
    assert choosing.lower_bound_us <= choosing.value_us < unreached_us
    verify(choosing.schedule, problem.costs, problem.caps_bytes)
    stages = recomputed(choosing.schedule)
    assert stages == list(range(len(stages))) and stages


def test_choosing_repeats_itself_where_it_is_told_to() -> None:
    problem = tight_problem(placement("linear", 2), 80)
    first, second = (solve_choosing(problem, counted(0.02)) for _ in range(2))
    assert first.schedule is not None and first.schedule == second.schedule


def test_where_memory_suffices_nothing_is_recomputed() -> None:
    problem = tight_problem(placement("linear", 4), 1000)
    found = solve_choosing(problem, counted(3))
    assert found.schedule is not None and not recomputed(found.schedule)
    assert found.value_us == found.lower_bound_us


def test_without_a_limit_choosing_proves_what_is_proven_where_all_is_kept() -> None:
    problem = replace(tight_problem(placement("linear", 3), 0), caps_bytes=None)
    choosing, keeping = solve_choosing(problem, counted(3)), solve(problem, counted(3))
    assert choosing.value_us == keeping.value_us
    assert choosing.lower_bound_us == keeping.lower_bound_us == keeping.value_us


def test_without_a_limit_choosing_takes_a_hint_that_recomputes() -> None:
    problem = replace(tight_problem(placement("linear", 2), 0), caps_bytes=None)
    m = problem.num_micro_batches
    hint = written_out(generate("1f1b", 2, m), {0})
    found = solve_with(problem, None, replace(counted(0.1), hint=hint))
    assert found.schedule is not None and not recomputed(found.schedule)


def test_chosen_stages_recompute_every_micro_batch_and_the_bound_holds() -> None:
    problem = tight_problem(placement("linear", 4), 100)
    values = {}
    for stages in [c for n in (1, 2) for c in combinations(range(4), n)]:
        found = solve_recomputing(problem, stages, SolveOptions(time_limit_s=0.5, workers=1))
        if found.schedule is None:
            continue
        ops = [op for program in found.schedule.programs for op in program]
        assert {(op.stage, op.microbatch) for op in ops if op.kind == OpKind.R} == {
            (stage, j) for stage in stages for j in range(8)
        }
        assert found.value_us is not None and found.lower_bound_us <= found.value_us
        values[stages] = found.value_us
    any_bound = problem.objective.value_us(bounds_of_any_choice(problem))
    assert values and any_bound <= min(values.values())


def test_what_nothing_can_keep_is_infeasible_and_recomputing_fits_where_keeping_does_not() -> None:
    options = SolveOptions(time_limit_s=0.5, workers=1)
    never = solve_choosing(tight_problem(placement("linear", 4), 30), options)
    assert never.schedule is None and never.stopped_by == StoppedBy.INFEASIBLE
    assert never.message is not None and "no schedule fits" in never.message
    # Without recomputing the two stages of a rank do not fit together, one after the other they do.
    where = placement("v", 2)
    problem = tight_problem(where, 60)
    assert solve(problem, options).stopped_by == StoppedBy.INFEASIBLE
    assert solve_choosing(problem, options).schedule is not None


def test_an_output_larger_than_what_is_saved_is_no_false_impossibility() -> None:
    # F0 R0 B0 W0 on rank 0: at R, when the gradient's receive is posted, the activation has been
    # sent: 10 for the gradient and 4 that R rebuilt. Without R the two of 10 meet.
    costs = uniform_costs(
        2,
        forward_us=1,
        backward_input_us=1,
        backward_weight_us=1,
        saved_bytes=4,
        saved_w_bytes=0,
        output_bytes=10,
    )
    programs = ("F0.0 R0.0 B0.0 W0.0", "F1.0 B1.0 W1.0")
    ops = tuple(tuple(map(Op.parse, line.split())) for line in programs)
    problem = Problem.linear(costs, 1, 14)
    verify(Schedule(problem.placement, 1, ops, "by hand", Buffering(0, 0)), costs, (14, 14))
    options = SolveOptions(time_limit_s=0.5, workers=1)
    for found in (solve_recomputing(problem, (0,), options), solve_choosing(problem, options)):
        assert found.stopped_by != StoppedBy.INFEASIBLE
    assert solve(problem, options).stopped_by == StoppedBy.INFEASIBLE


def test_limits_of_a_choice_enclose_what_is_found_at_them() -> None:
    for name, num_ranks in (("linear", 3), ("v", 2)):
        problem = replace(tight_problem(placement(name, num_ranks), 0), caps_bytes=None)
        plain = limits_bytes(problem, ())
        for choice in (None, (0,), tuple(range(problem.costs.num_stages))):
            never, least = limits_bytes(problem, choice)
            assert never <= least and (choice is not None or least <= plain[1])
            for cap, fits in ((least, True), (never - 1, False)):
                asked = replace(problem, caps_bytes=(cap,) * num_ranks)
                found = solve_with(asked, choice, SolveOptions(time_limit_s=0.1, workers=1))
                assert (found.schedule is not None) == fits


def profile_that_saves_much() -> Profile:
    """Four equal layers whose F keeps 40 bytes, and hands on 2."""
    times = {OpKind.F: 10, OpKind.B: 11, OpKind.W: 9, OpKind.BW: 20, OpKind.STEP: 1}
    layer = LayerProfile(
        time_us={kind: Timing.exactly(us) for kind, us in times.items()},
        parameter_bytes=1,
        gradient_bytes=1,
        optimizer_bytes=0,
        output_bytes=2,
        saved_bytes=40,
        saved_w_bytes=20,
        rise_bytes={kind: 42 * (kind == OpKind.F) for kind in times},
    )
    return Profile(
        name="much",
        provenance=Provenance(source="invented", device="none", date="2024-01-01"),
        workload=Workload(model="none", micro_batch_size=1, sequence_length=1, runnable=False),
        layer_profiles={"l": layer},
        layers=tuple(Layer(name=f"l{i}", profile="l") for i in range(4)),
    )


def test_a_curve_with_recomputation_begins_lower_and_is_nowhere_slower() -> None:
    profile = profile_that_saves_much()
    sizes = (1, 1, 1, 1)
    problem = Problem(partition_costs(profile, sizes), placement("v", 2), 3, partition=sizes)
    effort = Effort(points=3, time_limit_s=1, jobs=2, workers=1, gap=0)
    plain = trace(profile, OneCandidate(Candidate("v", problem)), effort)
    chosen = OneCandidate(Candidate("v", problem, None))
    curve = trace(profile, chosen, effort)
    curve.check()
    assert curve.least_cap_bytes < plain.least_cap_bytes
    assert recomputed(curve.points[0].schedule()) and not recomputed(curve.points[-1].schedule())
    known, other = knowledge_of(curve.points), knowledge_of(plain.points)
    for cap in range(curve.least_cap_bytes, 400):
        mine, without = known.best_within(cap), other.best_within(cap)
        assert mine is not None and known.bound_us(cap) <= mine.value_us
        assert without is None or known.bound_us(cap) <= without.value_us
    with pytest.raises(SynthError, match="recompute: auto there, none here"):
        trace(profile, OneCandidate(Candidate("v", problem)), effort, curve)


def test_the_least_cap_with_recomputation_is_below_what_is_proven_without() -> None:
    problem = replace(tight_problem(placement("linear", 3), 0), caps_bytes=None)
    kept = solve(replace(problem, caps_bytes=(59,) * 3), counted())
    assert kept.lower_bound_us > 450
    stop = threading.Event()

    def stop_when_less(step: Incumbent) -> None:
        if max(step.peak_bytes) <= 59:
            stop.set()

    options = SolveOptions(time_limit_s=HOURS_S / 6, workers=1)
    chosen = OneCandidate(Candidate("linear", problem, None))
    result = least_cap(chosen, TimeTarget(time_us=450), options, SolveWatch(stop_when_less, stop))
    assert result.schedule is not None and result.value_us is not None
    proof = result.memory
    assert proof is not None and proof.cap_bytes is not None and proof.gap is not None
    assert proof.gap >= 0 and proof.cap_bytes <= 59
    assert result.value_us <= 450 and recomputed(result.schedule)
    verify(result.schedule, problem.costs, (proof.cap_bytes,) * 3)
