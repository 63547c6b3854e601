"""CP-SAT in worker processes: the search continues if they abort, hang or are killed."""

import logging
import math
import os
import signal
import subprocess
import sys
import threading
from array import array
from collections.abc import Callable
from pathlib import Path

import pytest
from ortools.sat.python import cp_model

from synth.costs.partition_costs import partition_costs
from synth.objective import Objective
from synth.profile import Profile
from synth.schedule.placements import placement
from synth.schedule.verify import verify
from synth.search.outcome import StoppedBy
from synth.solver.cpsat import worker_pool
from synth.solver.cpsat.model import ExactModel
from synth.solver.cpsat.parameters import quiet
from synth.solver.cpsat.restarting_call import ask
from synth.solver.cpsat.run import Values, decide, run
from synth.solver.cpsat.worker_pool import WorkerDied
from synth.solver.cpsat.worker_program import Answer, Event, ModelSolution
from synth.solver.instance.timing import TimedOrders
from synth.solver.options import Part, SolveOptions
from synth.solver.problem import Problem
from synth.solver.solver import solve
from tests.synth.effort import HOURS_S, counted
from tests.synth.even_stages import even
from tests.synth.worker_processes import kill_workers, left_after

ROOT = Path(__file__).resolve().parents[3]
ABORTS = Path(__file__).parent / "cpsat_aborts"

# Four ranks, eight micro-batches, three quarters of 1F1B's memory, as in test_solve.
BEST_US = 1676


def model_of_eight() -> ExactModel:
    return ExactModel(even(4, 9, 8), Objective.MAKESPAN, 10_000)


@pytest.mark.parametrize(
    ("name", "where", "num_ranks", "cap_bytes", "best_us"),
    [("seed118", "bidirectional", 4, 19, 95), ("seed188", "bidirectional-v", 2, None, 1191)],
)
def test_problems_on_which_or_tools_aborts_are_solved_and_proven(
    name: str,
    where: str,
    num_ranks: int,
    cap_bytes: int | None,
    best_us: int,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    costs = partition_costs(Profile.load(ABORTS / f"{name}.json"), [1] * 4)
    caps = None if cap_bytes is None else (cap_bytes,) * num_ranks
    problem = Problem(costs, placement(where, num_ranks), 3, caps, Objective.PERIOD)
    kept = {
        Part.FAMILIES,
        Part.SIMPLIFICATION,
        Part.LIST_SCHEDULING,
        Part.CLOSED_FORMS,
        Part.EXACT,
    }
    with caplog.at_level(logging.INFO, "synth.solver"):
        options = SolveOptions(60, seed=0, deterministic=True, without=frozenset(Part) - kept)
        result = solve(problem, options)
    assert (result.value_us, result.lower_bound_us) == (best_us, best_us)
    assert result.stopped_by == StoppedBy.OPTIMAL
    assert "SIGABRT: Check failed" in caplog.text  # else it shows nothing
    assert capfd.readouterr() == ("", "")


class KilledOnce:
    """Kills every worker when the first solution or bound comes."""

    def __init__(self, times: int = 1) -> None:
        self.left, self.events = times, list[TimedOrders | int]()

    def __call__(self, event: TimedOrders | int) -> None:
        self.events.append(event)
        if self.left and isinstance(event, TimedOrders):
            self.left -= 1
            assert kill_workers()


def test_a_worker_killed_in_the_middle_of_a_search_is_gone_on_from() -> None:
    model, killed = model_of_eight(), KilledOnce()
    outcome = run(model, counted(1000), 1000, killed)
    assert killed.left == 0
    assert (outcome.bound_us, outcome.optimal) == (BEST_US, True)
    assert outcome.timing is not None
    assert outcome.timing.value_us(model.ops.instance, Objective.MAKESPAN) == BEST_US


def test_an_idle_worker_that_was_killed_at_the_same_time_is_no_second_death() -> None:
    model, killed, small = model_of_eight(), KilledOnce(), cp_model.CpModel()

    def solve_beside(event: TimedOrders | int) -> None:
        if killed.left:  # leaves an idle worker
            assert decide(small, HOURS_S, seed=0).found is not None
        killed(event)

    outcome = run(model, counted(1000), 1000, solve_beside)
    assert killed.left == 0
    assert (outcome.bound_us, outcome.optimal) == (BEST_US, True)


def test_what_two_killed_workers_told_is_the_outcome() -> None:
    model, killed = model_of_eight(), KilledOnce(times=2)
    outcome = run(model, counted(1000), 1000, killed)
    assert killed.left == 0
    timings = [event for event in killed.events if isinstance(event, TimedOrders)]
    values = [timing.value_us(model.ops.instance, Objective.MAKESPAN) for timing in timings]
    assert outcome.timing is not None and not outcome.infeasible
    assert outcome.timing.value_us(model.ops.instance, Objective.MAKESPAN) == min(values)
    assert outcome.bound_us <= BEST_US <= min(values)
    # Nobody knows how much it was, and the search has to end; the last one may have died after it.
    assert outcome.optimal or outcome.spent_s == 1000


def test_a_search_whose_workers_are_all_killed_still_answers() -> None:
    problem = Problem(
        partition_costs(Profile.load(ABORTS / "seed118.json"), [1] * 4),
        placement("bidirectional", 4),
        3,
    )
    over, killed = threading.Event(), list[int]()

    def kill() -> None:
        while not over.wait(0.005):
            killed.extend(kill_workers())

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        result = solve(problem, counted(20))
    finally:
        over.set()
        killer.join()
    assert killed
    assert result.schedule is not None and result.value_us is not None
    verify(result.schedule, problem.costs)
    assert result.lower_bound_us <= result.value_us


def test_small_models_are_decided_though_their_worker_is_killed() -> None:
    model = model_of_eight()
    polls = iter(range(1_000_000))

    def kill_at_first() -> bool:
        if next(polls) == 0:
            kill_workers()
        return False

    decided = decide(model.cp, HOURS_S, seed=0, should_stop=kill_at_first)
    assert decided.found is not None and decided.found.value(model.value) == BEST_US


def test_a_worker_that_does_not_stop_is_ended() -> None:
    model = model_of_eight()
    asked = iter([False])

    def hold_then_stop() -> bool:
        if next(asked, True):
            return True
        kill_workers(signal.SIGSTOP)
        return False

    decided = decide(model.cp, HOURS_S, seed=0, should_stop=hold_then_stop)
    assert not decided.is_refuted
    assert left_after(10, list(worker_pool.processes())) == []


def test_an_idle_worker_that_was_killed_is_replaced() -> None:
    first = decide(model_of_eight().cp, HOURS_S, seed=0)
    killed = kill_workers()
    assert left_after(10, killed) == []
    assert decide(model_of_eight().cp, HOURS_S, seed=0).spent_s == first.spent_s
    assert not set(killed) & set(worker_pool.processes())


def test_workers_are_used_again_and_calls_beside_each_other_have_their_own() -> None:
    kill_workers()
    model = cp_model.CpModel()
    x = model.new_int_var(2, 9, "x")
    model.minimize(x)

    def is_solved() -> bool:
        decided = decide(model, HOURS_S, seed=0)
        return decided.found is not None and decided.found.value(x) == 2

    assert all(is_solved() for _ in range(3))
    assert len(worker_pool.processes()) == 1
    within = []
    outcome = run(model_of_eight(), counted(1000), 1000, lambda _: within.append(is_solved()))
    assert outcome.optimal and within and all(within)
    assert len(worker_pool.processes()) == 2


def test_the_second_worker_begins_from_the_first_ones_solution_and_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = cp_model.CpModel()
    x, y = model.new_int_var(0, 9, "x"), model.new_int_var(0, 9, "y")
    model.add(x + y >= 7)
    model.minimize(3 * x + 2 * y + 5)  # 19, with y = 7
    asked: list[tuple[cp_model.CpModelProto, cp_model.SatParameters]] = []
    genuine = worker_pool.solve

    def die_first(
        proto: cp_model.CpModelProto,
        parameters: cp_model.SatParameters,
        on_events: Callable[[list[Event]], None] | None,
        should_stop: Callable[[], bool],
    ) -> Answer:
        asked.append((proto, parameters))
        if len(asked) == 1:
            assert on_events is not None
            on_events([ModelSolution(22.0, 0.25, array("q", [1, 7])), 18.5])
            raise WorkerDied("as if by an abort")
        return genuine(proto, parameters, on_events, should_stop)

    monkeypatch.setattr(worker_pool, "solve", die_first)
    parameters = quiet(0, 1, repeatable=True)
    parameters.max_deterministic_time = 1.0
    parameters.use_dynamic_precedence_in_disjunctive = True
    answer = ask(model.proto, parameters, lambda events: None)
    (_, second) = asked
    assert list(second[0].solution_hint.values) == [1, 7]
    assert min(second[0].objective.domain) == 14  # 19 less the constant
    assert second[1].max_deterministic_time == 0.75
    assert not second[1].use_dynamic_precedence_in_disjunctive
    assert not model.proto.has_solution_hint() and parameters.max_deterministic_time == 1.0
    assert answer.status == cp_model.OPTIMAL and answer.bound == answer.objective == 19
    assert Values(answer.values).value(x - 2 * y) == -14
    assert answer.deterministic_s >= 0.25


def test_what_the_first_worker_proved_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    model = cp_model.CpModel()
    x = model.new_int_var(2, 9, "x")
    model.minimize(x)
    calls = []

    def die(
        proto: cp_model.CpModelProto,
        parameters: cp_model.SatParameters,
        on_events: Callable[[list[Event]], None] | None,
        should_stop: Callable[[], bool],
    ) -> Answer:
        calls.append(proto)
        assert on_events is not None
        on_events([ModelSolution(2.0, 0.0, array("q", [2])), 2.0])
        raise WorkerDied("after the last proof")

    monkeypatch.setattr(worker_pool, "solve", die)
    answer = ask(model.proto, quiet(0, 1, repeatable=True), lambda events: None)
    assert (answer.status, answer.bound, len(calls)) == (int(cp_model.OPTIMAL), 2.0, 1)


@pytest.mark.parametrize("bound", [3.0, -math.inf])
def test_what_the_second_worker_found_without_a_proof_counts(
    bound: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = cp_model.CpModel()
    model.minimize(model.new_int_var(2, 9, "x"))
    answers = iter([None, Answer(int(cp_model.FEASIBLE), bound, 5.0, 0.5, array("q", [5]))])

    def die_first(*_: object) -> Answer:
        answer = next(answers)
        if answer is None:
            raise WorkerDied("before it told anything")
        return answer

    monkeypatch.setattr(worker_pool, "solve", die_first)
    answer = ask(model.proto, quiet(0, 1, repeatable=True))
    feasible = int(cp_model.FEASIBLE)
    assert (answer.status, answer.objective, list(answer.values)) == (feasible, 5.0, [5])
    assert answer.bound == max(bound, 0.0)


def test_that_there_is_no_solution_does_not_rest_on_a_dead_workers_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = cp_model.CpModel()
    model.minimize(model.new_int_var(2, 9, "x"))
    calls: list[None] = []
    genuine = worker_pool.solve

    def err_first(
        proto: cp_model.CpModelProto,
        parameters: cp_model.SatParameters,
        on_events: Callable[[list[Event]], None] | None,
        should_stop: Callable[[], bool],
    ) -> Answer:
        calls.append(None)
        if len(calls) == 1:
            assert on_events is not None
            on_events([20.0])  # more than any value is
            raise WorkerDied("as if by an abort")
        return genuine(proto, parameters, on_events, should_stop)

    monkeypatch.setattr(worker_pool, "solve", err_first)
    answer = ask(model.proto, quiet(0, 1, repeatable=True), lambda events: None)
    assert (answer.status, answer.objective, len(calls)) == (int(cp_model.OPTIMAL), 2.0, 2)


# A search that takes minutes: it tells the ids of the workers that it has once it runs.
LONG = """
import os, sys, threading, time
from synth.objective import Objective
from synth.solver.cpsat import worker_pool
from synth.solver.cpsat.model import ExactModel
from synth.solver.cpsat.run import decide
from tests.synth.even_stages import even

def search(should_stop=lambda: False):
    return decide(ExactModel(even(8, 12, 32), Objective.MAKESPAN, 100_000).cp, 1e6, 0, should_stop)

def tell_workers():
    while not worker_pool.processes():
        time.sleep(0.01)
    print(*worker_pool.processes(), flush=True)

threading.Thread(target=tell_workers, daemon=True).start()
"""


def start(code: str, folder: Path) -> "subprocess.Popen[str]":
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, "-c", LONG + code],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def workers_told(process: "subprocess.Popen[str]") -> list[int]:
    assert process.stdout is not None
    return [int(word) for word in process.stdout.readline().split()]


@pytest.mark.parametrize("what", [signal.SIGKILL, signal.SIGTERM])
def test_no_worker_outlives_its_parent(what: signal.Signals, tmp_path: Path) -> None:
    with start("search()\n", tmp_path) as parent:
        workers = workers_told(parent)
        assert workers
        parent.send_signal(what)
        assert parent.wait(60) == -what
        assert left_after(10, workers) == []


def test_no_worker_outlives_a_parent_whose_fork_holds_its_pipes(tmp_path: Path) -> None:
    """A fork that runs no Python hooks, as C code does, leaves the end of a pipe open."""
    code = (
        "def fork():\n"
        "    tell_workers()\n"
        "    import ctypes\n"
        "    if ctypes.PyDLL(None).fork() == 0:\n"
        "        time.sleep(30)\n"
        "threading.Thread(target=fork, daemon=True).start()\n"
        "search()\n"
    )
    with start(code, tmp_path) as parent:
        workers = workers_told(parent)
        workers_told(parent)
        parent.kill()
        assert left_after(10, workers) == []
        assert parent.stdout is not None and parent.stderr is not None
        parent.stdout.close()
        parent.stderr.close()


def test_workers_end_with_an_interpreter_that_ends_by_itself(tmp_path: Path) -> None:
    code = (
        "threading.Thread(target=search, daemon=True).start()\n"
        "tell_workers()\n"
        "stop = threading.Event()\n"
        "search(lambda: True)\n"
    )
    with start(code, tmp_path) as parent:
        workers = workers_told(parent)
        assert parent.wait(60) == 0
        assert parent.stderr is not None and parent.stderr.read() == ""
        assert left_after(10, workers) == []


def test_a_forked_process_has_workers_of_its_own(tmp_path: Path) -> None:
    code = (
        "small = ExactModel(even(4, 9, 8), Objective.MAKESPAN, 10_000)\n"
        "def value(): return decide(small.cp, 1e6, 0).found.value(small.value)\n"
        "assert value() == 1676\n"
        "before = worker_pool.processes()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    assert worker_pool.processes() == ()\n"
        "    assert value() == 1676 and not set(before) & set(worker_pool.processes())\n"
        "    os._exit(0)\n"
        "assert value() == 1676 and worker_pool.processes() == before\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0\n"
    )
    with start(code, tmp_path) as parent:
        _, said = parent.communicate(timeout=120)
        assert (parent.returncode, said) == (0, "")


def test_a_worker_that_cannot_start_is_an_error_that_says_why(tmp_path: Path) -> None:
    code = (
        "from ortools.sat.python import cp_model\n"
        "sys.path[:] = [path for path in sys.path if 'site-packages' not in path]\n"
        "try:\n"
        "    search()\n"
        "except Exception as error:\n"
        "    print(type(error).__name__, error)\n"
    )
    with start(code, tmp_path) as parent:
        stdout, _ = parent.communicate(timeout=120)
    assert "RunFailure the process for CP-SAT does not start" in stdout
    assert "No module named 'ortools'" in stdout
