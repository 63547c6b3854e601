"""The even partition against the result of the partition search, under caps around 1F1B's memory.

A row's value is that of the even partition; the further columns are of `--partition search` in the
same time. Its bound holds for all partitions if ranks hold one stage, and for those that were tried
if they hold several. 1F1B's memory is that on the even partition.
"""

from collections.abc import Iterator
from itertools import product

from benchmarks.solver.baselines import share_of_1f1b
from benchmarks.solver.case import Case, Look, Suite
from benchmarks.solver.probe import Cell
from synth.costs.partition_costs import partition_costs
from synth.plan.choose.candidates import Candidate, Partitioning
from synth.plan.choose.race import solve_best_of
from synth.plan.partition.balance import balance
from synth.profile import Profile
from synth.profiles import find
from synth.schedule.placements import placement
from synth.solver.options import SolveOptions
from synth.solver.problem import Problem
from synth.solver.result import Result

PROFILE = "zb-1.5b-p8-m24"
NUM_MICRO_BATCHES = 24
SHARES = (0.5, 0.6, 0.75, 0.9, 1)
WAYS = (("linear", 4), ("linear", 8), ("v", 4))
SECONDS = 20.0


def problem(name: str, num_ranks: int, share: float) -> Problem:
    """The even partition, under a share of the memory of 1F1B with one stage per rank."""
    profile, where = Profile.load(find(PROFILE)), placement(name, num_ranks)
    plain = partition_costs(profile, balance(profile, placement("linear", num_ranks)))
    caps = (share_of_1f1b(plain, NUM_MICRO_BATCHES, share),) * num_ranks
    sizes = balance(profile, where, caps, NUM_MICRO_BATCHES)
    return Problem(partition_costs(profile, sizes), where, NUM_MICRO_BATCHES, caps, partition=sizes)


def _look(result: Result) -> Look:
    """Return the columns of a search over partitions too."""
    asked, profile = result.problem, Profile.load(find(PROFILE))
    options = SolveOptions(SECONDS)
    found = solve_best_of([Candidate("", asked)], profile, Partitioning.SEARCHED, options).result
    columns: dict[str, Cell] = {
        "sought": found.value_us,
        "its bound": found.lower_bound_us,
        "its gap %": None if found.gap is None else 100 * found.gap,
        "shorter by %": None,
        "layers": ",".join(map(str, found.problem.partition or ())),
    }
    if result.value_us and found.value_us:
        columns["shorter by %"] = 100 * (1 - found.value_us / result.value_us)
    return Look(columns)


def _cases() -> Iterator[Case]:
    for (name, num_ranks), share in product(WAYS, SHARES):
        label = f"{name} {num_ranks},{NUM_MICRO_BATCHES} {share:g}x"
        yield Case(label, problem(name, num_ranks, share), SECONDS, look=_look)


SUITE = Suite("partition", "The even partition against the one sought.", _cases, SECONDS)
