"""Bufferings are chosen by successive halving, and few buffers are tried soon."""

from itertools import groupby

from benchmarks.tight_caps import realistic
from synth.schedule.model import Buffering
from synth.solver.improve.annealing import Annealing
from synth.solver.improve.buffering_race import BufferingRace
from synth.solver.options import Part, SolveOptions
from synth.solver.solver import solve
from synth.solver.tuning import ANNEALING


def test_ever_fewer_bufferings_get_ever_longer_rounds_then_all_again() -> None:
    known = [Buffering(ahead, behind) for ahead in range(3) for behind in range(3)]
    best_last = {buffering: 100 - place for place, buffering in enumerate(known)}
    race = BufferingRace()
    rounds = []
    for _ in range(9 + 4 + 2 + 1 + 9):
        buffering = race.next(known, best_last.__getitem__)
        rounds.append((race.moves_per_op, buffering))
    heats = [(moves, [b for _, b in heat]) for moves, heat in groupby(rounds, lambda r: r[0])]
    first, growth = ANNEALING.moves_per_op, ANNEALING.growth_in_race
    assert heats == [
        (first, known[::-1]),
        (first * growth, known[:-5:-1]),
        (first * growth**2, known[:-3:-1]),
        (first * growth**3, known[:-2:-1]),
        (first * ANNEALING.growth, known[::-1]),
    ]


def test_a_buffering_goes_on_by_what_its_round_found() -> None:
    few, many = Buffering(0, 0), Buffering(1, 2)
    value_us = {few: 20, many: 10}
    race = BufferingRace()
    assert race.next(list(value_us), value_us.__getitem__) == many
    assert race.next(list(value_us), value_us.__getitem__) == few
    value_us[few] = 5
    assert race.next(list(value_us), value_us.__getitem__) == few


def test_rounds_stop_growing() -> None:
    race, only = BufferingRace(), Buffering(1, 2)
    for _ in range(100):
        race.next([only], lambda _: 0)
    assert race.moves_per_op == ANNEALING.most_moves_per_op


def test_few_buffers_are_tried_soon_though_the_first_order_is_no_faster_with_them() -> None:
    problem = realistic(13).problem
    parts = frozenset(Part) - {Part.LIST_SCHEDULING}
    options = SolveOptions(time_limit_s=2, workers=1, deterministic=True, without=parts)
    start = solve(problem, options).schedule
    assert start is not None
    annealing = Annealing(problem, seed=3)
    annealing.add(start.programs, [start.buffering])
    *_, found = annealing.run(30_000_000, lambda: False)
    # With the buffering that is fastest at first, ten times the effort ends at 7659.
    assert found.value_us < 7659
