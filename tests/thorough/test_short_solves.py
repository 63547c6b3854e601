"""Short searches of random problems: each ends with a correct result although CP-SAT is killed."""

import logging
import random
import threading

import pytest

from synth.schedule.lowering.lower import lower
from synth.schedule.model import Buffering, Schedule
from synth.schedule.placements import placement
from synth.schedule.rank_memory import peak_bytes
from synth.schedule.verify import verify
from synth.search.outcome import StoppedBy
from synth.solver.options import SolveOptions
from synth.solver.problem import Problem
from synth.solver.solver import solve
from tests.synth.odd_problems import RandomOrders, odd_costs
from tests.synth.solver.test_solve_exact import OBJECTIVES
from tests.synth.worker_processes import kill_workers
from tests.thorough.examples import Examples

PLACEMENTS = (
    *("linear", "v", "looped:2", "wave:2"),
    *("bidirectional", "bidirectional-v", "bidirectional-looped:2"),
)


@pytest.mark.thorough(share=0.12)
def test_short_searches_end_with_a_right_answer_whatever_becomes_of_their_workers(
    examples: Examples, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.INFO, "synth.solver")

    def check(draw: random.Random) -> None:
        problem = random_problem(draw)
        is_deterministic = draw.random() < 0.2
        options = SolveOptions(
            0.05 if is_deterministic else draw.choice((0.2, 0.5, 1.0)),
            workers=draw.choice((1, 2)),
            seed=draw.getrandbits(20),
            deterministic=is_deterministic,
        )
        over = threading.Event()
        killer = threading.Thread(target=kill_at_times, args=(draw.getrandbits(20), over))
        if draw.random() < 0.2:
            killer.start()
        try:
            result = solve(problem, options)
        finally:
            over.set()
            if killer.ident is not None:
                killer.join()
        said = (problem, options)
        if result.schedule is None:
            assert result.message is not None, said
            return
        lowered, timeline = verify(result.schedule, problem.costs)
        assert result.value_us == problem.objective.value_us(timeline), said
        assert result.lower_bound_us <= result.value_us, said
        if result.stopped_by == StoppedBy.OPTIMAL:
            assert result.lower_bound_us == result.value_us, said
        if problem.caps_bytes is not None:
            peaks = zip(peak_bytes(lowered), problem.caps_bytes, strict=True)
            assert all(peak <= cap for peak, cap in peaks), said

    examples.each(check)
    aborts = sum("SIGABRT" in record.getMessage() for record in caplog.records)
    with capsys.disabled():
        print(f" {aborts} aborts of CP-SAT survived", end="")


def random_problem(draw: random.Random) -> Problem:
    """Any placement and objective; no cap, or about the memory of a random order."""
    num_ranks = draw.choice((2, 2, 3, 4))
    where = placement(draw.choice([p for p in PLACEMENTS if is_possible(p, num_ranks)]), num_ranks)
    costs = odd_costs(draw, where.num_stages, num_ranks)
    free = Problem(costs, where, draw.randint(2, 6), None, draw.choice(OBJECTIVES))
    if draw.random() < 0.4:
        return free
    programs = RandomOrders(draw, free).programs()
    order = Schedule(where, free.num_micro_batches, programs, "random", Buffering(9, 9))
    cap = max(peak_bytes(lower(order, costs)))
    caps = (max(1, round(cap * draw.uniform(0.5, 1.2))),) * num_ranks
    return Problem(costs, where, free.num_micro_batches, caps, free.objective)


def is_possible(name: str, num_ranks: int) -> bool:
    """Two directions need an even number of ranks."""
    return num_ranks % 2 == 0 or not name.startswith("bidirectional")


def kill_at_times(seed: int, over: threading.Event) -> None:
    """Kill all workers of this process at random moments."""
    draw = random.Random(seed)
    while not over.wait(draw.uniform(0.01, 0.4)):
        kill_workers()
