"""Equal stages, one per rank, caps below, at and above 1F1B's memory: known values and a grid.

Times F 55, B 58, W 35, 2 between ranks; F keeps 3 of which 2 are left after B; the cap is a share
of what 1F1B holds on rank 0; the objective is the makespan.
"""

from collections.abc import Iterator
from itertools import product

from benchmarks.solver.case import Case, Known, Suite
from synth.costs.costs import uniform_costs
from synth.profile.links import Link, Links
from synth.solver.problem import Problem

# (ranks, micro-batches, share of 1F1B's memory): the best bound and the best value so far.
KNOWN = {
    (4, 8, 0.75): Known(1676, 1676),
    (4, 12, 0.75): Known(2416, 2416),
    (4, 12, 1): Known(2034, 2034),
    (4, 16, 0.5): Known(4326, 4326),
    (4, 16, 0.75): Known(3180, 3180),
    (4, 32, 0.5): Known(8566, 8566),
    (4, 32, 0.75): Known(6164, 6164),
    (4, 32, 0.9): Known(6164, 6164),
    (8, 8, 0.5): Known(2378, 2378),
    (8, 16, 0.5): Known(4472, 4472),
    (8, 16, 0.75): Known(3427, 3427),
    (8, 16, 1): Known(2970, 2970),
    (8, 32, 0.5): Known(8652, 8652),
    (8, 32, 0.75): Known(6199, 6199),
    (8, 32, 0.9): Known(5539, 5539),
    (8, 32, 1): Known(5338, 5338),
    (8, 32, 1.5): Known(5135, 5135),
    (8, 64, 0.5): Known(16706, 17012),
    (8, 64, 0.75): Known(11719, 11787),
    (8, 64, 0.9): Known(10366, 10456),
    (16, 16, 0.75): Known(4250, 4250),
    (16, 32, 0.5): Known(8832, 8832),
    (16, 32, 0.6): Known(8364, 8364),
    (16, 32, 0.75): Known(6838, 6838),
    (16, 32, 0.9): Known(6322, 6322),
    (16, 32, 1): Known(6026, 6026),
    (16, 64, 0.5): Known(16764, 16764),
    (16, 64, 0.6): Known(15286, 15302),
    (16, 64, 0.75): Known(12170, 12186),
    (16, 64, 0.9): Known(11058, 11141),
    (16, 64, 1): Known(10762, 10762),
}
SIZES = ((4, 8), (4, 16), (4, 32), (8, 16), (8, 32), (8, 64), (16, 16), (16, 32), (16, 64))
SHARES = (0.5, 0.6, 0.75, 0.9, 1, 1.5, 2)


def problem(num_ranks: int, num_micro_batches: int, share: float) -> Problem:
    """The problem of a row."""
    costs = uniform_costs(
        num_ranks,
        forward_us=55,
        backward_input_us=58,
        backward_weight_us=35,
        links=Links(default=Link(latency_us=2)),
        saved_bytes=3,
        saved_w_bytes=2,
    )
    return Problem.linear(costs, num_micro_batches, int(share * 3 * num_ranks))


def _cases() -> Iterator[Case]:
    grid = {(*size, share) for size, share in product(SIZES, SHARES)}
    for ranks, m, share in sorted(grid | set(KNOWN)):
        known = KNOWN.get((ranks, m, share))
        yield Case(f"{ranks},{m},{share:g}", problem(ranks, m, share), known=known)


SUITE = Suite("table", "Equal stages, shares of 1F1B's memory; label: ranks,m,share.", _cases)
