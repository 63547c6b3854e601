"""The zero-bubble paper's profiles in 1F1B's memory and twice that, for makespan and period.

ZB-1p and ZB-2p are made for exactly these problems. The caps count everything (parameters and
optimizer state once, whatever the share); activations count by the share.
"""

import re
from collections.abc import Iterator
from itertools import product

from benchmarks.solver.baselines import baseline, share_of_1f1b
from benchmarks.solver.case import Case, Look, Suite
from synth.costs.partition_costs import partition_costs
from synth.families import generate
from synth.objective import Objective
from synth.plan.partition.balance import balance
from synth.profile import Profile
from synth.profiles import find, names
from synth.schedule.placements import placement
from synth.solver.problem import Problem
from synth.solver.result import Result

_NAME = re.compile(r"zb-(.+)-p(\d+)-m(\d+)")


def problem(name: str, share: float, objective: Objective = Objective.PERIOD) -> Problem:
    """A shipped profile, cut into equally many layers per rank as the paper does."""
    match = _NAME.fullmatch(name)
    assert match is not None, name
    num_ranks, num_micro_batches = int(match[2]), int(match[3])
    profile = Profile.load(find(name))
    costs = partition_costs(profile, balance(profile, placement("linear", num_ranks)))
    cap = share_of_1f1b(costs, num_micro_batches, share)
    return Problem.linear(costs, num_micro_batches, cap, objective)


def _cases() -> Iterator[Case]:
    shipped = [name for name in names() if _NAME.fullmatch(name)]
    for name, share, objective in product(shipped, (1, 2), (Objective.MAKESPAN, Objective.PERIOD)):
        label = f"{name.removeprefix('zb-')} {share}x {objective}"
        yield Case(label, problem(name, share, objective), look=_look)


def _look(result: Result) -> Look:
    """ZB-1p's and ZB-2p's values; no answer may be above one that fits."""
    asked = result.problem
    ranks, m, costs = asked.num_ranks, asked.num_micro_batches, asked.costs
    baselines = [
        baseline(
            generate(name, ranks, m, costs=costs, caps_bytes=asked.caps_bytes),
            costs,
            asked.objective,
            asked.caps_bytes,
        )
        for name in ("zb-1p", "zb-2p")
    ]
    return Look({baseline.name: str(baseline) for baseline in baselines})


SUITE = Suite("published", "The zero-bubble paper's profiles, 1F1B's memory and twice it.", _cases)
