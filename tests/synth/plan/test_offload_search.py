"""Offloads chosen for given orders, and the search that has them."""

import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest

from synth.costs.costs import uniform_costs
from synth.errors import SynthError
from synth.families import family_of, generate, generate_for, names_on
from synth.objective import BoundScope, Objective
from synth.op_kinds import OpKind
from synth.plan.choose.candidates import Candidate, Partitioning, SearchWatch
from synth.plan.claim import claim_of
from synth.plan.offload.offload_space import (
    WithOffloads,
    finer_placements,
    with_offloads_if_asked,
)
from synth.plan.offload.offloaded import with_offloads, without_moves
from synth.plan.offload.rank_moves import (
    MovePlaces,
    RankClock,
    RankLevels,
    choose_moves,
    intervals_of,
)
from synth.plan.offload.thinned import away_shares, thinned
from synth.plan.problem_arguments import ProblemArguments
from synth.plan.published.family_searches import FamilySearches
from synth.plan.published.order_scores import Judge
from synth.plan.reprove.reproof import ProofVerdict
from synth.plan.reprove.reprove import reprove
from synth.plan.runtimes import Allowed
from synth.plan.search_space import OneCandidate, Placements
from synth.profile import Profile
from synth.profile.links import Link, Links
from synth.profiles import find
from synth.schedule.files.plan_file import Plan
from synth.schedule.ops import Op
from synth.schedule.placements import placement
from synth.schedule.verify import verify
from synth.search.outcome import StoppedBy
from synth.solver.evaluate.evaluate import evaluate
from synth.solver.options import SolveOptions
from synth.solver.problem import Problem
from synth.solver.result import Result

F, BW = OpKind.F, OpKind.BW
OPTIONS = SolveOptions(time_limit_s=0.3, workers=1, deterministic=True)


def four_ranks(cap: int, where: str = "linear", move_us: int = 6, m: int = 8) -> Problem:
    """Activations of 10 bytes per rank, and a link to the host that moves one in a given time."""
    placed = placement(where, 4)
    rounds = placed.num_stages // 4
    costs = uniform_costs(
        placed.num_stages,
        forward_us=12 // rounds,
        backward_input_us=12 // rounds,
        backward_weight_us=12 // rounds,
        links=Links(default=Link(latency_us=1), host=Link(latency_us=move_us)),
        saved_bytes=20 // rounds,
        saved_w_bytes=4 // rounds,
        output_bytes=1,
    )
    return Problem(costs, placed, m, (cap,) * 4)


def searched(problem: Problem, options: SolveOptions = OPTIONS) -> Result:
    space = WithOffloads(OneCandidate(Candidate("asked", problem)))
    return space.search(options, SearchWatch()).result


def test_the_interval_whose_next_use_is_farthest_moves() -> None:
    """Three F's before their B's; at F2 two others are too many.

        place   0   1       2   3   4   5
        op      F0  F1  O1  F2  B0  B1  B2     10 µs each, F2 from 25 µs on; a move takes 5

    F1 is needed last of these two. It moves out from 20 to 25 µs, before the wait at F2, and back
    from 40 to 45, when B1 starts. L stands before B0, which ends at 45.
    """
    ops = [*(Op(F, 0, j) for j in range(3)), *(Op(BW, 0, j) for j in range(3))]
    starts = [0, 10, 25, 35, 45, 55]
    clock = RankClock(ops, starts, [at + 10 for at in starts])
    levels = _levels([10, 20, 30, 20, 20, 10], limit=25)
    intervals = intervals_of(ops, [10], [5])
    moves = choose_moves(clock, levels, intervals, send_behind=0)
    assert moves == {intervals[1]: MovePlaces(offload=2, wait=2, reload=3)}


def _levels(running: list[int], limit: int) -> RankLevels:
    levels = np.array([*running, 0]) - limit
    return RankLevels(levels - 10, levels)


def test_without_a_delay_a_plan_takes_as_long_as_its_order_without_limits() -> None:
    problem = four_ranks(75, move_us=2)
    order = generate("1f1b", 4, 8, costs=problem.costs)
    free = evaluate(replace(problem, caps_bytes=None), order, "1f1b")
    assert evaluate(problem, order, "1f1b") is None  # it needs more memory
    found = with_offloads(problem, order, "chosen")
    assert free is not None and found is not None
    assert found.value_us == free.value_us and found.schedule.offloads
    assert without_moves(found.schedule).programs == order.programs
    verify(found.schedule, problem.costs, problem.caps_bytes)


def test_an_order_that_fits_has_no_offloads() -> None:
    problem = four_ranks(1000)
    found = with_offloads(problem, generate("1f1b", 4, 8, costs=problem.costs), "chosen")
    assert found is not None and not found.schedule.offloads


def test_the_share_away_is_that_of_the_link_and_of_the_lifetime() -> None:
    # Rank 0: an F lives 3 · (12 + 1) + 3 · (12 + 1) + 12 + ... µs; the last rank's 12 µs are too
    # short for two moves of 6 and a B.
    shares = away_shares(four_ranks(100))
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 0.5 and shares[-1] == 0
    # A link as slow as four micro-batches' work carries a quarter of them.
    assert away_shares(four_ranks(100, move_us=144)) == [0, 0, 0, 0]
    stages = zip(thinned(four_ranks(100), 1.0).costs.stages, shares, strict=True)
    assert all(stage.saved_bytes == 20 - int(20 * share) for stage, share in stages)


@pytest.mark.parametrize(("where", "cap"), [("linear", 75), ("linear", 60), ("looped:2", 64)])
def test_the_plan_is_no_worse_than_published_ones_that_offload_and_its_bound_is_proven(
    where: str, cap: int
) -> None:
    problem = four_ranks(cap, where)
    result = searched(problem)
    assert result.schedule is not None and result.value_us is not None
    _, line = verify(result.schedule, problem.costs, problem.caps_bytes)
    assert line.makespan_us == result.value_us
    assert result.lower_bound_us <= result.value_us
    assert result.bound_scope == BoundScope.PARTITION
    made = generate_for(problem.placement, 8, problem.costs, problem.caps_bytes)
    published = [evaluate(problem, schedule, name) for name, schedule in made]
    values = [one.value_us for one in published if one is not None]
    assert all(result.value_us <= value for value in values)


def host_profile() -> Profile:
    """A shipped profile with a link to the host."""
    profile = Profile.load(find("zb-1.5b-p8-m24"))
    host = Link(latency_us=10, bandwidth_bytes_per_s=100e9)
    return profile.replace(links=profile.links.replace(host=host))


def space_of(names: Sequence[str], finer: Sequence[str], cap: int) -> WithOffloads:
    """Placements of a shipped profile on 4 ranks, with partitions to search."""
    profile, allowed = host_profile(), Allowed(offloads=True)
    asked = ProblemArguments(profile, 8, "even", Objective.MAKESPAN, (cap,) * 4, allowed=allowed)
    usual, further = (
        tuple(Candidate(name, asked.on(placement(name, 4))) for name in those)
        for those in (names, finer)
    )
    return WithOffloads(Placements(usual, profile, Partitioning.SEARCHED), further)


def test_finer_placements_have_more_stages_than_the_usual_ones_and_no_more_than_layers() -> None:
    assert list(finer_placements(4, 24)) == ["looped:5", "looped:6"]
    assert finer_placements(8, 32) == {}


def test_with_hardly_any_time_the_answer_is_no_worse_than_what_compare_shows() -> None:
    space = space_of(("linear", "looped:2"), ("looped:6",), 24 * 10**9)
    options = replace(OPTIONS, time_limit_s=0.01)
    result = space.search(options, SearchWatch()).result
    assert result.schedule is not None and result.value_us is not None
    problem = space.problem
    assert isinstance(space.space, Placements)
    judge = Judge(problem.objective, problem.caps_bytes)
    searches = FamilySearches(space.space.profile, problem.num_micro_batches, judge)
    values = []
    for one in space.all_candidates:
        for name in names_on(one.problem.placement):
            if not family_of(name).offloads:
                continue
            with suppress(SynthError):  # one round has no half of the stages
                score = searches.of(name, one.problem.placement).plain().score
                values += [score.value_us] if score.fits else []
    assert len(values) > 4 and result.value_us <= min(values)
    verify(result.schedule, result.problem.costs, problem.caps_bytes)


def test_the_answer_may_be_on_a_finer_placement_and_its_bound_covers_that() -> None:
    space = space_of(("linear",), ("looped:6",), 24 * 10**9)
    options = replace(OPTIONS, time_limit_s=0.01)
    result = space.search(options, SearchWatch()).result
    assert result.problem.placement == placement("looped:6", 4)
    assert result.value_us is not None and result.lower_bound_us <= result.value_us
    coarse = space_of(("linear",), (), 24 * 10**9)
    other = coarse.search(options, SearchWatch()).result
    assert other.value_us is None or result.value_us < other.value_us


def test_a_stop_ends_the_search_before_further_orders_get_their_offloads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stop, problem = threading.Event(), four_ranks(75)

    def chosen(*args: object, **kwargs: object) -> None:
        if stop.is_set():
            raise AssertionError("offloads of a further order are chosen")
        stop.set()

    monkeypatch.setattr("synth.plan.offload.search.with_offloads", chosen)
    space = WithOffloads(OneCandidate(Candidate("asked", problem)))
    result = space.search(OPTIONS, SearchWatch(None, stop)).result
    assert result.stopped_by in (StoppedBy.INTERRUPT, StoppedBy.TIME_LIMIT)


def test_a_search_that_counts_its_effort_repeats() -> None:
    options = replace(OPTIONS, time_limit_s=0.5)
    first, second = (searched(four_ranks(60), options) for _ in range(2))
    assert first.schedule == second.schedule and first.schedule is not None
    assert (first.found_by or "").endswith("annealed")


def test_of_equal_plans_the_one_that_moves_nothing_is_the_answer() -> None:
    result = searched(four_ranks(1000), replace(OPTIONS, time_limit_s=0.5))
    assert result.schedule is not None and not result.schedule.offloads


def test_an_order_that_would_be_far_behind_is_given_up() -> None:
    problem = four_ranks(60)
    order = generate("1f1b", 4, 8, costs=problem.costs)
    found = with_offloads(problem, order, "chosen")
    assert found is not None
    assert with_offloads(problem, order, "chosen", found.value_us / 2) is None
    again = with_offloads(problem, order, "chosen", 2 * found.value_us)
    assert again is not None and again.value_us == found.value_us


def test_below_all_limits_without_offloads_a_plan_is_found() -> None:
    """Two stages of a rank that hold 10 bytes each, F and B far apart: one has to leave."""
    problem = four_ranks(19, "looped:2", m=4)
    plain = OneCandidate(Candidate("asked", problem))
    watch = SearchWatch()
    options = replace(OPTIONS, time_limit_s=2)
    assert plain.search(options, watch).result.schedule is None
    result = searched(problem, options)
    assert result.schedule is not None and result.schedule.offloads
    verify(result.schedule, problem.costs, problem.caps_bytes)


def test_where_a_rank_holds_several_stages_nothing_is_called_infeasible_without_proof() -> None:
    looped, linear = four_ranks(2, "looped:2"), four_ranks(2)
    assert searched(looped).stopped_by == StoppedBy.TIME_LIMIT
    assert searched(linear).stopped_by == StoppedBy.INFEASIBLE


def asked(cap: int | None, host: Link | None) -> Problem:
    profile = Profile.load(find("zb-1.5b-p8-m24"))
    profile = profile.replace(links=profile.links.replace(host=host))
    caps = None if cap is None else (cap,) * 4
    made = ProblemArguments(profile, 8, "even", Objective.MAKESPAN, caps)
    return made.on(placement("linear", 4))


def test_offloads_are_a_choice_where_asked_with_a_limit_and_a_link() -> None:
    host = Link(latency_us=10, bandwidth_bytes_per_s=25e9)
    for cap, link, may_offload in ((None, host, True), (10**11, None, True), (10**11, host, False)):
        space = OneCandidate(Candidate("linear", asked(cap, link)))
        assert with_offloads_if_asked(space, Allowed(offloads=may_offload)) is space
    space = OneCandidate(Candidate("linear", asked(10**11, host)))
    assert isinstance(with_offloads_if_asked(space, Allowed(offloads=True)), WithOffloads)


@pytest.mark.slow
def test_a_plan_on_several_placements_keeps_its_limit_and_proves_its_bound() -> None:
    profile = host_profile()
    made = ProblemArguments(profile, 8, "even", Objective.MAKESPAN, (26 * 10**9,) * 4)
    candidates = tuple(
        Candidate(name, made.on(placement(name, 4))) for name in ("linear", "looped:2")
    )
    space = WithOffloads(Placements(candidates, profile, Partitioning.GIVEN))
    found = space.search(replace(OPTIONS, time_limit_s=6), SearchWatch())
    result = found.result
    assert result.schedule is not None and result.schedule.offloads
    assert result.bound_scope == BoundScope.CANDIDATES
    assert found.trials[0].found is not None
    assert found.trials[0].found.value_us == result.value_us
    problem = result.problem
    assert problem.partition is not None
    plan = Plan.of(
        profile,
        problem.partition,
        result.schedule,
        claim=claim_of(result, problem, OPTIONS),
        caps_bytes=problem.caps_bytes,
        arguments={"offload": "true"},
    )
    _, line = plan.check()
    proof = reprove(plan, line, replace(OPTIONS, time_limit_s=20))
    assert proof.verdict == ProofVerdict.PROVEN
    low = plan.replace(claim=plan.claim.replace(lower_bound_us=line.makespan_us, certificate=None))
    assert reprove(low, line, replace(OPTIONS, time_limit_s=3)).verdict != ProofVerdict.PROVEN
