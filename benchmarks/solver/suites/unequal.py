"""Unequal stages: jitter, a heavy head, a large vocabulary, slow links.

The problems have 8 ranks and 32 micro-batches; the objective is the period, which the zero-bubble
greedy minimises. The greedy runs twice: with the costs of every stage, and with their average but
simulated on the true costs, like the released system. At 1F1B's memory it is ZB-1p, whose order
follows from memory, so both are the same. At other limits it is the greedy under the caps.
"""

import random
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product

from benchmarks.solver.baselines import averaged, baseline, share_of_1f1b
from benchmarks.solver.case import Case, Look, Suite
from benchmarks.solver.probe import Cell
from synth.costs.costs import Costs, uniform_costs
from synth.costs.stage_costs import StageCosts
from synth.errors import SynthError
from synth.families import generate
from synth.objective import Objective
from synth.op_kinds import MEASURED, OpKind
from synth.profile.links import Link, Links
from synth.solver.problem import Problem
from synth.solver.result import Result

NUM_RANKS, NUM_MICRO_BATCHES = 8, 32
SHARES = (0.75, 1, 1.5)
_FORWARD_US, _BACKWARD_US, _LAG_US = 10_600, 21_000, 200


def equal(lag_us: int = _LAG_US) -> Costs:
    """Return equal stages, with memory as in the zero-bubble paper's table 1, without attention."""
    return uniform_costs(
        NUM_RANKS,
        forward_us=_FORWARD_US,
        backward_input_us=_BACKWARD_US // 2,
        backward_weight_us=_BACKWARD_US // 2,
        links=Links(default=Link(latency_us=lag_us)),
        saved_bytes=34,
        saved_w_bytes=32,
    )


def jittered(seed: int) -> Costs:
    """Every time of every stage up to 15 % more or less."""
    rng, costs = random.Random(seed), equal()
    return costs.replace(
        stages=tuple(
            _timed(stage, *(round(us * rng.uniform(0.85, 1.15)) for us in _times(stage)))
            for stage in costs.stages
        )
    )


def with_head(factor: float) -> Costs:
    """Return costs with a last stage that takes `factor` times as long."""
    times = _times(equal().stages[-1])
    return _with_last(*(round(factor * us) for us in times))


def with_vocabulary() -> Costs:
    """Return costs with the output layer of a large vocabulary: F 36.8 ms, B and W 26 ms."""
    return _with_last(36_800, 26_000, 26_000)


VARIANTS: dict[str, Callable[[], Costs]] = {
    **{f"jitter {seed}": partial(jittered, seed) for seed in range(3)},
    "head 1.2x": partial(with_head, 1.2),
    "head 2x": partial(with_head, 2),
    "vocabulary": with_vocabulary,
    "slow links": partial(equal, round(0.7 * _FORWARD_US)),
}


def problem(costs: Costs, share: float) -> Problem:
    """Those stages under a share of 1F1B's memory."""
    cap = share_of_1f1b(costs, NUM_MICRO_BATCHES, share)
    return Problem.linear(costs, NUM_MICRO_BATCHES, cap, Objective.PERIOD)


def _cases() -> Iterator[Case]:
    for (name, make), share in product(VARIANTS.items(), SHARES):
        greedy = "zb-1p" if share == 1 else "zb-limit"
        look = partial(_look, greedy)
        yield Case(f"{name} {share:g}x", problem(make(), share), look=look)


def _look(greedy: str, result: Result) -> Look:
    """The greedy with true and with averaged costs, and what the answer gains on the second."""
    asked = result.problem
    columns: dict[str, Cell] = {
        "greedy": greedy,
        "true": None,
        "averaged": None,
        "gain on it %": None,
    }
    for column, given in (("true", asked.costs), ("averaged", averaged(asked.costs))):
        try:
            schedule = generate(
                greedy,
                asked.num_ranks,
                asked.num_micro_batches,
                costs=given,
                caps_bytes=asked.caps_bytes,
            )
        except SynthError:
            continue  # it found nothing within the caps
        found = baseline(schedule, asked.costs, asked.objective, asked.caps_bytes)
        columns[column] = str(found)
        if column == "averaged" and result.value_us is not None:
            columns["gain on it %"] = round(100 * (1 - result.value_us / found.value_us), 2)
    return Look(columns)


def _times(stage: StageCosts) -> tuple[int, int, int]:
    """F, B and W of a stage, in µs."""
    return (
        stage.duration_us[OpKind.F],
        stage.duration_us[OpKind.B],
        stage.duration_us[OpKind.W],
    )


def _timed(stage: StageCosts, forward_us: int, backward_us: int, weight_us: int) -> StageCosts:
    """A stage with other times; BW takes B + W."""
    both_us = backward_us + weight_us
    times = zip(MEASURED, (forward_us, backward_us, weight_us, both_us, 0), strict=True)
    return stage.replace(duration_us=dict(times))


def _with_last(*times_us: int) -> Costs:
    costs = equal()
    return costs.replace(stages=(*costs.stages[:-1], _timed(costs.stages[-1], *times_us)))


SUITE = Suite("unequal", "Stages that are not alike; label: what, share of 1F1B's memory.", _cases)
