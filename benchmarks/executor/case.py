"""One row of the benchmark: which schedule, how many ranks, which stages, of which size."""

from dataclasses import dataclass, replace
from functools import cache

from synth.costs.costs import Costs, uniform_costs
from synth.families import generate
from synth.op_kinds import OpKind
from synth.schedule.lowering.lower import lower
from synth.schedule.model import Schedule
from synth.schedule.ops import Op
from synth.schedule.rank_memory import peak_bytes
from synth.solver.options import SolveOptions
from synth.solver.problem import Problem
from synth.solver.solver import solve

# The memory of a solved schedule, as a share of the activations on 1F1B's first rank.
_SOLVED_SHARE = 0.75
_SAVED_BYTES = 1000


@dataclass(frozen=True)
class Size:
    """The size of the tensors: `rows` sequences of `length` vectors of `width` numbers."""

    name: str
    rows: int
    length: int
    width: int
    blocks: int


SIZES = {
    size.name: size
    for size in (
        Size("tiny", rows=2, length=4, width=16, blocks=1),
        Size("small", rows=2, length=64, width=128, blocks=2),
        Size("medium", rows=4, length=128, width=256, blocks=2),
        Size("long", rows=8, length=512, width=64, blocks=2),
        Size("wide", rows=4, length=64, width=1024, blocks=2),
        Size("large", rows=1, length=512, width=2048, blocks=2),
    )
}


@dataclass(frozen=True)
class Case:
    """A case that both runtimes replay.

    Attributes:
        schedule: a family's name, or `solved`.
        split: None leaves the schedule as it is; True makes B and W of every BW, False a BW of
            every B and its W.
        stages: `linear` (almost no model: the runtime's own cost), `mlp` or `attention`.
        device: of stages and data.
    """

    schedule: str
    num_ranks: int
    num_micro_batches: int
    stages: str
    checkpoint: bool
    split: bool | None
    size: Size
    device: str = "cpu"

    def make_schedule(self) -> Schedule:
        """The order that both runtimes replay."""
        made = _make(self.schedule, self.num_ranks, self.num_micro_batches)
        programs = tuple(_with_split(program, self.split) for program in made.programs)
        return replace(made, programs=programs)


def _costs(num_stages: int) -> Costs:
    """Equal stages: only an order follows from them."""
    return uniform_costs(
        num_stages,
        forward_us=100,
        backward_input_us=100,
        backward_weight_us=100,
        saved_bytes=_SAVED_BYTES,
        saved_w_bytes=_SAVED_BYTES // 2,
        output_bytes=1,
    )


@cache
def _make(name: str, num_ranks: int, num_micro_batches: int) -> Schedule:
    if name != "solved":
        return generate(name, num_ranks, num_micro_batches)
    costs = _costs(num_ranks)
    held = peak_bytes(lower(generate("1f1b", num_ranks, num_micro_batches), costs))[0]
    problem = Problem.linear(costs, num_micro_batches, int(held * _SOLVED_SHARE))
    options = SolveOptions(time_limit_s=2.0, deterministic=True, workers=1)
    found = solve(problem, options).schedule
    assert found is not None
    return found


def _with_split(program: tuple[Op, ...], split: bool | None) -> tuple[Op, ...]:
    if split is None:
        return program
    ops: list[Op] = []
    for op in program:
        if split and op.kind == OpKind.BW:
            ops += [op._replace(kind=OpKind.B), op._replace(kind=OpKind.W)]
        elif not split and op.kind == OpKind.B:
            ops.append(op._replace(kind=OpKind.BW))
        elif split or op.kind != OpKind.W:
            ops.append(op)
    return tuple(ops)
