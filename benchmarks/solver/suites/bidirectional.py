"""Two copies of the stages in opposite directions, at the memory of Chimera and of BitPipe.

A model of D slices, or of 2D halves: F 100 µs and backward 200 µs a slice, 2 µs between ranks. Its
copies' weights, and the time of adding up their gradients, are left out, as in the papers.

*split*: the backward is B and W, 100 each; B frees half. *whole*: B takes all of the backward and
frees all that was kept, W takes and frees nothing: so the solver has no more choices than the
published schedules, which have no W.
"""

from collections.abc import Iterator
from itertools import product

from benchmarks.solver.baselines import baseline, peak_of
from benchmarks.solver.case import Case, Look, Suite
from benchmarks.solver.probe import Cell
from synth.costs.costs import Costs, uniform_costs
from synth.families import family_placement, generate
from synth.profile.links import Link, Links
from synth.schedule.placements import placement
from synth.solver.problem import Problem
from synth.solver.result import Result

# The placement, and the published schedule whose memory is the cap.
PLACEMENTS = {"bidirectional": "chimera", "bidirectional-v": "bitpipe"}
BASELINES = ("chimera", "bitpipe", "interleaved")
_SLICE_US, _SLICE_BYTES = 100, 4


def model(num_ranks: int, num_stages: int, split: bool) -> Costs:
    """The same model, partitioned into D or 2D stages."""
    parts = num_stages // num_ranks
    forward_us, saved_bytes = _SLICE_US // parts, _SLICE_BYTES // parts
    return uniform_costs(
        num_stages,
        forward_us=forward_us,
        backward_input_us=forward_us if split else 2 * forward_us,
        backward_weight_us=forward_us if split else 0,
        links=Links(default=Link(latency_us=2)),
        saved_bytes=saved_bytes,
        saved_w_bytes=saved_bytes // 2 if split else 0,
    )


def problem(name: str, num_ranks: int, num_micro_batches: int, split: bool) -> Problem:
    """A row: the placement's own published schedule just fits."""
    where = placement(name, num_ranks)
    costs = model(num_ranks, where.num_stages, split)
    cap = peak_of(PLACEMENTS[name], num_ranks, num_micro_batches, costs)
    return Problem(costs, where, num_micro_batches, (cap,) * num_ranks)


def _cases() -> Iterator[Case]:
    for name, ranks, rounds, split in product(PLACEMENTS, (4, 8), (1, 2, 4), (True, False)):
        m, how = rounds * ranks, "split" if split else "whole"
        asked = problem(name, ranks, m, split)
        yield Case(f"{name} {ranks},{m} {how}", asked, look=_look)


def _look(result: Result) -> Look:
    """The rivals on their own placements, in brackets where they exceed the row's cap."""
    asked = result.problem
    split = any(stage.saved_w_bytes for stage in asked.costs.stages)
    columns: dict[str, Cell] = {}
    for name in BASELINES:
        where = family_placement(name, asked.num_ranks)
        costs = model(asked.num_ranks, where.num_stages, split)
        schedule = generate(name, asked.num_ranks, asked.num_micro_batches, costs=costs)
        columns[name] = str(baseline(schedule, costs, asked.objective, asked.caps_bytes))
    return Look(columns)


SUITE = Suite("bidirectional", "Two directions; label: placement, ranks,m, backward.", _cases)
