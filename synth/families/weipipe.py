"""WeiPipe: weights are passed round a ring of ranks, activations stay (PPoPP 2025).

Lin et al., "WeiPipe: Weight Pipeline Parallelism for Communication-Effective Long-Context Large
Model Training". With P ranks there are P stages and N = G · P micro-batches; micro-batch j does all
its ops on rank j mod P. Op (s, j) runs when an activation pipeline would run it, on another rank:
what moves are the weights of stage s, from micro-batch j to micro-batch j + 1, and the sum of its
gradients. Home of stage s is rank (P − s) mod P, from which rank 0 gets it first.

The paper draws schedules in turns, which all ranks begin together. Here a rank begins an op as soon
as its weights are there, so that turns give the order alone, and weights wait at home instead of
circulating while nobody needs them. The paper's formulas for lock-step are those of `turns`:

    naive         one forward or one backward per turn
    interleaved   one of each per turn, of different micro-batches
    wzb1          B and W apart, two ops per turn, for an even number of ranks
    wzb2          B and W apart, one op per turn; W's run upwards

`ahead` is the number of turns that weights may arrive before they are used; each takes one more
buffer per direction.
"""

from collections.abc import Iterator

from synth.errors import SynthError
from synth.families._lib.buffering_choice import patient
from synth.families._lib.family import Family, Programs, Setting
from synth.families._lib.options import ChoiceOption, Count
from synth.op_kinds import OpKind
from synth.schedule.model import Buffering, Schedule
from synth.schedule.ops import Op
from synth.schedule.weight_flow import Route, WeightFlow

F, B, W, BW = OpKind.F, OpKind.B, OpKind.W, OpKind.BW

_ORDER = ChoiceOption("order", ("interleaved", "naive", "wzb1", "wzb2"))
_AHEAD = Count("ahead", 1, least=0)


def make(setting: Setting) -> Programs:
    """List the ops of each rank turn by turn, with visits that begin `ahead` turns before."""
    num_ranks, m = setting.num_ranks, setting.num_micro_batches
    if m % num_ranks:
        raise SynthError(f"weipipe needs a multiple of {num_ranks} micro-batches, given {m}")
    order = str(setting.options["order"])
    if order == "wzb1" and num_ranks % 2:
        raise SynthError(f"weipipe:wzb1 needs an even number of ranks, given {num_ranks}")
    ahead = setting.count("ahead")
    return [
        _with_visits(turns(order, num_ranks, m // num_ranks, rank), num_ranks, rank, ahead)
        for rank in range(num_ranks)
    ]


def turns(order: str, num_ranks: int, rounds: int, rank: int) -> list[list[Op]]:
    """The ops of a rank in each turn; backwards come first, which keeps fewer activations.

    Args:
        order: one of the words of the family's option.
        rounds: micro-batches per rank.
    """
    listed = sorted(
        (turn, op.kind == F, op)
        for number in range(rounds)
        for turn, op in _ORDERS[order](num_ranks, rank, number)
    )
    found: list[list[Op]] = [[] for _ in range(listed[-1][0] + 1)]
    for turn, _, op in listed:
        found[turn].append(op)
    return found


_Placed = Iterator[tuple[int, Op]]


def _naive(num_ranks: int, rank: int, number: int) -> _Placed:
    j, begin = number * num_ranks + rank, rank + 2 * num_ranks * number
    for s in range(num_ranks):
        yield begin + s, Op(F, s, j, rank)
        yield begin + 2 * num_ranks - 1 - s, Op(BW, s, j, rank)


def _interleaved(num_ranks: int, rank: int, number: int) -> _Placed:
    j = number * num_ranks + rank
    for s in range(num_ranks):
        yield j + s, Op(F, s, j, rank)
        yield j + 2 * num_ranks - 1 - s, Op(BW, s, j, rank)


def _wzb1(num_ranks: int, rank: int, number: int) -> _Placed:
    """Three blocks of turns for two micro-batches: the second one begins a block later."""
    j, half = number * num_ranks + rank, num_ranks // 2
    begin = rank + (3 * (number // 2) + number % 2) * num_ranks
    for s in range(num_ranks):
        yield begin + s, Op(F, s, j, rank)
        # B of the i-th stage of a half of the stages at 2 i, its W a turn later.
        block, place = divmod(num_ranks - 1 - s, half)
        turn = begin + (1 + block) * num_ranks + 2 * place
        yield turn, Op(B, s, j, rank)
        yield turn + 1, Op(W, s, j, rank)


def _wzb2(num_ranks: int, rank: int, number: int) -> _Placed:
    j, begin = number * num_ranks + rank, rank + 3 * num_ranks * number
    for s in range(num_ranks):
        yield begin + s, Op(F, s, j, rank)
        yield begin + 2 * num_ranks - 1 - s, Op(B, s, j, rank)
        yield begin + 2 * num_ranks + s, Op(W, s, j, rank)


_ORDERS = {"naive": _naive, "interleaved": _interleaved, "wzb1": _wzb1, "wzb2": _wzb2}


def _with_visits(by_turn: list[list[Op]], num_ranks: int, rank: int, ahead: int) -> Iterator[Op]:
    """Put the UNSHARD of each turn's stages `ahead` turns before it.

    If a turn between still uses the weights of an earlier visit of the stage, it stands after the
    last such op. A stage at home needs none, and two ops of one turn and stage share a visit.
    """
    visits = [0] * num_ranks
    placed: list[list[Op]] = [[] for _ in by_turn]
    for turn, ops in enumerate(by_turn):
        stages = {
            op.stage: None for op in ops if op.kind != W and home(op.stage, num_ranks) != rank
        }
        for stage in stages:
            first = max(0, turn - ahead)
            used = [t for t in range(first, turn) if any(_reads(op, stage) for op in by_turn[t])]
            begin = used[-1] + 1 if used else first
            placed[begin].append(Op(OpKind.UNSHARD, stage, visits[stage], rank))
            visits[stage] += 1
    for unshards, ops in zip(placed, by_turn, strict=True):
        yield from unshards
        yield from ops


def _reads(op: Op, stage: int) -> bool:
    return op.stage == stage and op.kind != W


def home(stage: int, num_ranks: int) -> int:
    """The rank that keeps a stage."""
    return (num_ranks - stage) % num_ranks


def weight_flow(setting: Setting) -> WeightFlow:
    """Weights and sums of gradients go from micro-batch to micro-batch."""
    homes = tuple((home(stage, setting.num_ranks),) for stage in range(setting.num_stages))
    return WeightFlow(homes, weights=Route.CHAIN, gradients=Route.CHAIN)


def buffering(setting: Setting, schedule: Schedule) -> Buffering:
    """The usual one; where a hop can take more than a round, the smallest without waiting."""
    is_short = setting.options["order"] in ("interleaved", "naive")
    return schedule.buffering if is_short else patient(setting, schedule)


FAMILY = Family(
    "weipipe",
    "Lin et al., WeiPipe, PPoPP 2025, section 4.2",
    make,
    "all-stages",
    options=(_ORDER, _AHEAD),
    buffering=buffering,
    weights=weight_flow,
)
