"""The local search judges as the verifier and the simulator do, and never makes anything worse."""

import random
from dataclasses import replace
from pickle import UnpicklingError

import numpy as np
import pytest

from synth.costs.costs import Costs
from synth.costs.stage_costs import StageCosts
from synth.families import generate
from synth.objective import Objective
from synth.op_kinds import OpKind
from synth.profile.links import Link, Links
from synth.schedule.model import Buffering, Schedule
from synth.schedule.placements import placement
from synth.schedule.rank_memory import peak_bytes
from synth.schedule.verify import ScheduleError, verify
from synth.search.outcome import StoppedBy
from synth.solver.evaluate import compiled as compiled_code
from synth.solver.evaluate import memory_kernel, path_kernel, time_kernel, walk_kernel
from synth.solver.evaluate.compiled import kernel_files
from synth.solver.evaluate.evaluate import evaluate
from synth.solver.evaluate.op_table import NONE, OpTable
from synth.solver.evaluate.order_arrays import order_arrays, programs_of
from synth.solver.improve import compiled_kernels
from synth.solver.improve.annealing import Annealing, Walk
from synth.solver.improve.compiled_kernels import is_loadable
from synth.solver.infeasibility import serial_schedule
from synth.solver.instance.memory_models import relaxed_for_fusion, relaxed_memory
from synth.solver.options import Part
from synth.solver.problem import Problem
from synth.solver.solver import solve
from tests.sweep import sweep
from tests.synth.effort import counted
from tests.synth.odd_problems import RandomOrders, odd_costs
from tests.synth.solver.test_solve_exact import rank_orders

F, B, W, BW, STEP = OpKind.F, OpKind.B, OpKind.W, OpKind.BW, OpKind.STEP

PLACEMENTS = ("linear", "v", "looped:2", "wave:2", "bidirectional", "bidirectional-v")
OBJECTIVES = (Objective.MAKESPAN, Objective.PERIOD, Objective.of_iterations(3))
DEPTHS = (0, 1, 2, 4, 40)


def odd_schedule(seed: int) -> tuple[Problem, Schedule]:
    """A random problem without caps, and random orders of it, which may wait for each other."""
    rng = random.Random(seed)
    name = rng.choice(PLACEMENTS)
    ranks = rng.choice([2, 4] if name.startswith("bi") else [2, 3, 4])
    where = placement(name, ranks)
    m = rng.randint(len(where.ranks), 5)
    costs = odd_costs(rng, where.num_stages, ranks)
    problem = Problem(costs, where, m, None, rng.choice(OBJECTIVES))
    programs = RandomOrders(rng, problem).programs()
    buffering = Buffering(rng.choice(DEPTHS), rng.choice(DEPTHS))
    return problem, Schedule(where, m, programs, "random", buffering)


def tight_problem() -> Problem:
    """Two ranks, five micro-batches; room for two of them and two boundary tensors."""
    times = ((8, 8, 10), (9, 12, 8))
    stages = tuple(
        StageCosts(
            duration_us={F: f, B: b, W: w, BW: b + w, STEP: 0},
            static_bytes=100,
            output_bytes=2,
            saved_bytes=4,
            saved_w_bytes=2,
            rise_bytes={F: 6, B: 2, W: 0, BW: 2, STEP: 0},
        )
        for f, b, w in times
    )
    costs = Costs(stages=stages, links=Links(default=Link(latency_us=0)))
    return Problem.linear(costs, 5, 112)


@pytest.mark.parametrize("seed", sweep(range(40), daily=16))
def test_memory_and_value_are_those_of_verifier_and_simulator(seed: int) -> None:
    problem, schedule = odd_schedule(seed)
    table = OpTable(problem)
    arrays = order_arrays(table, schedule, [None] * problem.num_ranks, [True] * table.num_copies)
    for rank in range(problem.num_ranks):
        walk_kernel.update_links(arrays, rank)
    value = time_kernel.time_orders(arrays)
    assert programs_of(table, arrays) == schedule.programs
    try:
        lowered, timeline = verify(schedule, problem.costs)
    except ScheduleError as error:
        assert "deadlock" in str(error)
        assert value == NONE
        return
    assert value == problem.objective.value_us(timeline)
    ranks = range(problem.num_ranks)
    peaks = (memory_kernel.peak_bytes(arrays, rank) + problem.static_bytes(rank) for rank in ranks)
    assert tuple(peaks) == peak_bytes(lowered)


@pytest.mark.parametrize("seed", sweep(range(40, 120), daily=40))
def test_so_are_they_after_random_moves(seed: int) -> None:
    check_walk(*odd_schedule(seed), seed, rounds=5)


def check_walk(
    problem: Problem, schedule: Schedule, seed: int, rounds: int, host_share: float = 0.0
) -> None:
    """Walk under caps a little above the peaks, so that some changes fit and others do not."""
    try:
        lowered, _ = verify(schedule, problem.costs)
    except ScheduleError:
        return
    caps = tuple(peak + 3 for peak in peak_bytes(lowered))
    capped = replace(problem, caps_bytes=caps)
    headrooms: list[int | None] = [cap - problem.static_bytes(r) for r, cap in enumerate(caps)]
    table = OpTable(problem)
    walk = Walk(table, schedule, headrooms, [True] * table.num_copies, host_share)
    assert walk.fits
    rng = np.random.default_rng(seed)
    for temperature_us in (0.0, 1.0, 10.0, 1e9) * rounds:
        walk.run(8, temperature_us, 1.0, rng)
        found = evaluate(capped, walk.now, "walk")
        assert found is not None  # it keeps the caps
        assert found.value_us == walk.value_us
    best = evaluate(capped, walk.best, "walk")
    assert best is not None and best.value_us == walk.best_us <= walk.value_us


def test_moves_over_a_cap_are_refused_and_others_made() -> None:
    problem = tight_problem()
    search = Annealing(problem, seed=0)

    def num_made() -> int:
        walk = search.walk(serial_schedule(problem))
        assert walk is not None
        return walk.run(2_000, 1e9, 1.0, np.random.default_rng(0))

    made = num_made()
    search.headrooms = [None, None]
    assert 0 < made < num_made() < 2_000


@pytest.mark.parametrize("seed", range(4))
def test_without_numba_the_same_code_runs_the_same_walk(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem, schedule = odd_schedule(seed)
    table = OpTable(problem)

    def best() -> tuple[int, Schedule]:
        walk = Walk(table, schedule, [None] * problem.num_ranks, [True] * table.num_copies)
        walk.run(100, 5.0, 0.99, np.random.default_rng(seed))
        return walk.best_us, walk.best

    compiled = best()
    with monkeypatch.context() as patch:
        for module in (time_kernel, memory_kernel, path_kernel, walk_kernel):
            late = getattr(compiled_code, module.__name__.rpartition(".")[2], module)
            for name, function in vars(module).items():
                if hasattr(function, "py_func"):
                    patch.setattr(module, name, function.py_func)
                    patch.setattr(late, name, function.py_func, raising=False)
        assert best() == compiled


def test_what_it_yields_is_ever_better_and_repeats_with_the_seed() -> None:
    problem = tight_problem()

    def values() -> list[int]:
        search = Annealing(problem, seed=3)
        search.add(serial_schedule(problem).programs)
        return [found.value_us for found in search.run(300_000, lambda: False)]

    found = values()
    serial = evaluate(problem, serial_schedule(problem), "serial")
    assert serial is not None
    assert found[0] == serial.value_us > found[-1]
    assert found == sorted(set(found), reverse=True)
    assert found == values()


def test_from_the_best_it_returns_nothing_worse() -> None:
    problem = tight_problem()
    search = Annealing(problem, seed=0)
    search.add(serial_schedule(problem).programs)
    *_, best = search.run(300_000, lambda: False)
    again = Annealing(problem, seed=1)
    again.add(best.schedule.programs, [best.schedule.buffering])
    assert all(f.value_us <= best.value_us for f in again.run(100_000, lambda: False))
    assert again.best is not None
    kept = evaluate(problem, again.best, "best")
    assert kept is not None and kept.value_us <= best.value_us


def test_long_rounds_spend_the_effort_given_and_repeat_with_the_seed() -> None:
    problem, units = replace(tight_problem(), caps_bytes=(200, 200)), 3_000_000

    def values() -> list[int]:
        search = Annealing(problem, seed=0)
        search.add(serial_schedule(problem).programs)

        def left() -> float:
            return units - search.units_spent

        found = [candidate.value_us for candidate in search.run_long(left, lambda: False)]
        assert search.units_spent >= units
        return found

    found = values()
    assert len(found) > 1
    assert found == sorted(set(found), reverse=True)
    assert found == values()


def test_long_rounds_that_are_stopped_keep_what_they_found() -> None:
    problem = replace(tight_problem(), caps_bytes=(200, 200))
    search = Annealing(problem, seed=0)
    search.add(serial_schedule(problem).programs)
    looks = iter([False] * 3)
    *_, found = search.run_long(lambda: 1e12, lambda: next(looks, True))
    serial = evaluate(problem, serial_schedule(problem), "serial")
    assert serial is not None and found.value_us < serial.value_us


def test_an_order_that_another_buffering_betters_is_yielded_without_any_move() -> None:
    problem = tight_problem()
    slow = Costs(stages=problem.costs.stages, links=Links(default=Link(latency_us=9)))
    problem = replace(problem, costs=slow, caps_bytes=(200, 200))
    given = replace(generate("gpipe", 2, 5), buffering=Buffering(0, 0))
    unbuffered = evaluate(problem, given, "given")
    search = Annealing(problem, seed=0)
    search.add(given.programs, [given.buffering])
    (found,) = search.run(0, lambda: True)
    assert unbuffered is not None and found.value_us < unbuffered.value_us


def test_it_finds_the_proven_optimum_that_models_miss() -> None:
    problem = tight_problem()
    options = counted(1)
    found = solve(problem, options)
    assert found.stopped_by == StoppedBy.OPTIMAL
    missed = solve(problem, replace(options, without=frozenset({Part.ANNEALING})))
    assert found.value_us is not None and missed.value_us is not None
    assert missed.value_us > found.value_us == found.lower_bound_us


def test_without_boundary_bytes_it_has_no_turn() -> None:
    problem = tight_problem()
    stages = tuple(stage.replace(output_bytes=0) for stage in problem.costs.stages)
    free = replace(problem, costs=problem.costs.replace(stages=stages))
    without = replace(counted(2), without=frozenset({Part.ANNEALING}))
    assert solve(free, counted(2)).schedule == solve(free, without).schedule


@pytest.mark.parametrize("seed", sweep(range(60), daily=24))
def test_no_order_that_fits_has_more_in_flight_than_views_say(seed: int) -> None:
    rng = random.Random(seed)
    m, is_fused = (3, False) if seed % 2 else (2, True)
    problem = Problem.linear(odd_costs(rng, 2, 2), m)
    for most, peak in least_peaks(problem, 0, is_fused).items():
        # The least cap with which so many can be in flight, by trying every order.
        instance = relaxed_memory(replace(problem, caps_bytes=(peak, peak + 999)))
        said = instance.most_in_flight(0)
        assert said is None or said >= most


@pytest.mark.parametrize("seed", sweep(range(12), daily=6))
def test_nor_on_a_rank_between_two_others(seed: int) -> None:
    rng = random.Random(seed)
    m, is_fused = (3, False) if seed % 2 else (2, True)
    problem = Problem.linear(odd_costs(rng, 3, 3), m)
    for most, peak in least_peaks(problem, 1, is_fused).items():
        capped = replace(problem, caps_bytes=(peak + 999, peak, peak + 999))
        for instance in (relaxed_memory(capped), relaxed_for_fusion(capped)):
            said = instance.most_in_flight(1)
            assert said is None or said >= most


def least_peaks(problem: Problem, rank: int, is_fused: bool) -> dict[int, int]:
    """By the most micro-batches in flight, the least peak of all orders of a rank's ops."""
    table, serial = OpTable(problem), serial_schedule(problem)
    peaks: dict[int, int] = {}
    for order in rank_orders(rank, problem.num_micro_batches, is_fused):
        programs = (*serial.programs[:rank], order, *serial.programs[rank + 1 :])
        schedule = replace(serial, programs=programs)
        arrays = order_arrays(
            table, schedule, [None] * problem.num_ranks, [True] * table.num_copies
        )
        peak = memory_kernel.peak_bytes(arrays, rank) + problem.static_bytes(rank)
        in_flight = most = 0
        for op in order:
            in_flight += {F: 1, B: -1, BW: -1}.get(op.kind, 0)
            most = max(most, in_flight)
        peaks[most] = min(peak, peaks.get(most, peak))
    return peaks


def test_boundary_buffers_limit_what_is_in_flight() -> None:
    # Room for two F's and one tensor; the B behind them needs another one for its gradient.
    problem = tight_problem()
    instance = relaxed_memory(replace(problem, caps_bytes=(110, 112)))
    assert instance.most_in_flight(0) == 1
    assert relaxed_memory(problem).most_in_flight(0) is None


def test_a_damaged_file_of_compiled_code_is_removed_and_the_search_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def damaged() -> None:
        raise UnpicklingError("pickle data was truncated")

    removed: list[bool] = []
    monkeypatch.setattr(compiled_kernels, "compile_kernels", damaged)
    monkeypatch.setattr(
        kernel_files, "remove_compiled", lambda: removed.append(True), raising=False
    )
    is_loadable.cache_clear()
    try:
        found = solve(tight_problem(), counted(1))
    finally:
        is_loadable.cache_clear()
    assert removed and found.schedule is not None
    assert "the compiled local search is damaged" in caplog.text
