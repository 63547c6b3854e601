"""Orders from which the search begins: those of published schedules, and groups of micro-batches.

The published ones are WeiPipe's four orders, and ZeRO's order of one micro-batch after the other.
In a *group* every stage runs the forwards of several micro-batches before the next stage does, and
likewise the backwards (breadth-first: Lamy-Poirier 2023, arXiv 2211.05953), so that they share
visits. Each order occurs with BW, with B directly followed by W, and with the W's of a group after
its B's.
"""

from collections.abc import Iterator

from synth.errors import SynthError
from synth.families import generate
from synth.families.weipipe import turns
from synth.op_kinds import OpKind
from synth.schedule.model import Schedule
from synth.schedule.ops import Op
from synth.solver.tuning import WEIGHT_PASSING
from synth.solver.weight_passing.compute_order import ComputeOrder, all_fused, all_split
from synth.solver.weight_passing.problem import WeightMovement, WeightPassingProblem

F, B, W, BW = OpKind.F, OpKind.B, OpKind.W, OpKind.BW

_RING_ORDERS = ("interleaved", "naive", "wzb1", "wzb2")


def published(passing: WeightPassingProblem) -> Iterator[tuple[str, Schedule]]:
    """Yield the published schedules of the movement, first with the default prefetch distance."""
    problem = passing.problem
    for name in _published_names(passing):
        try:
            made = generate(
                name,
                passing.num_ranks,
                problem.num_micro_batches,
                costs=problem.costs,
                caps_bytes=problem.caps_bytes,
            )
        except SynthError:
            continue  # its definition does not admit the numbers
        if made.placement == problem.placement:
            yield made.name, made


def _published_names(passing: WeightPassingProblem) -> list[str]:
    """The families of the movement; those that gather weights at visits with several distances."""
    stages_per_rank = len(passing.stages) // passing.num_ranks
    if passing.movement == WeightMovement.RING:
        visiting, others = [f"weipipe:{order}" for order in _RING_ORDERS], []
    else:
        visiting = [f"zero3:{stages_per_rank}"]
        others = [f"zero2:{stages_per_rank}", f"zero1:{stages_per_rank}"]
    further = [
        f"{name},ahead={ahead}" for ahead in WEIGHT_PASSING.other_aheads for name in visiting
    ]
    return [*visiting, *others, *further]


def first_orders(passing: WeightPassingProblem) -> dict[ComputeOrder, str]:
    """The orders of a rank with their names; each occurs once."""
    num_stages, rounds = len(passing.stages), passing.rounds
    found: dict[ComputeOrder, str] = {}
    for size in range(1, rounds + 1):
        name = f"groups of {size}" if size > 1 else "one by one"
        for order, title in _of_groups(num_stages, rounds, size, name).items():
            found.setdefault(order, title)
    for word in _RING_ORDERS:
        if word == "wzb1" and num_stages % 2:
            continue
        # With as many ranks as stages, rank 0 has the multiples of that number.
        order = tuple(
            op._replace(microbatch=op.microbatch // num_stages)
            for turn in turns(word, num_stages, rounds, 0)
            for op in turn
        )
        found.setdefault(order, word)
        found.setdefault(all_split(order), f"{word}, B and W apart")
        found.setdefault(all_fused(order), f"{word}, fused")
    return found


def orders_of_one_by_one(passing: WeightPassingProblem) -> dict[ComputeOrder, str]:
    """The orders in which a rank finishes a micro-batch before the next one, with their names."""
    return _of_groups(len(passing.stages), passing.rounds, 1, "one by one")


def _of_groups(num_stages: int, rounds: int, size: int, name: str) -> dict[ComputeOrder, str]:
    order = tuple(_groups(num_stages, rounds, size))
    found = {order: name}
    found.setdefault(all_split(order), f"{name}, B and W apart")
    found.setdefault(tuple(_weights_last(num_stages, rounds, size)), f"{name}, W last")
    return found


def _groups(num_stages: int, rounds: int, size: int) -> Iterator[Op]:
    for first in range(0, rounds, size):
        group = range(first, min(first + size, rounds))
        yield from (Op(F, s, g) for s in range(num_stages) for g in group)
        yield from (Op(BW, s, g) for s in reversed(range(num_stages)) for g in group)


def _weights_last(num_stages: int, rounds: int, size: int) -> Iterator[Op]:
    """All B's of a group before its W's, which go from the last stage to the first."""
    for op in _groups(num_stages, rounds, size):
        yield op._replace(kind=B) if op.kind == BW else op
        is_last = op.microbatch + 1 == rounds or (op.microbatch + 1) % size == 0
        if op.kind == BW and op.stage == 0 and is_last:
            first = op.microbatch // size * size
            group = range(first, op.microbatch + 1)
            yield from (Op(W, s, g) for g in group for s in reversed(range(num_stages)))
