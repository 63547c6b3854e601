"""The common part of the V-shaped schedules (Qi et al. 2024, arXiv 2405.15362).

Rank r holds stage r and stage 2D − 1 − r (placement `v`). A *building block* is one micro-batch in
unit slots, F = B = W = 1. The schedule is the block repeated every six slots, the work of a rank
per micro-batch. A pass goes from rank to rank in steps of a fixed number of slots:

    F of the first half   down, step a        B of the second half  down, step a
    F of the second half  up,   step b        B of the first half   up,   step b

Therefore the lifetimes of a rank's two activations have the same sum on every rank: memory is
balanced, and proportional to a + b. The W's fill the remaining two of the six slots.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from synth.families._lib.activations import activation_bytes, peak_activation_bytes
from synth.families._lib.family import Programs, Setting
from synth.families._lib.fit_to_caps import left_bytes, within_caps
from synth.families._lib.reorder import fitted
from synth.op_kinds import OpKind
from synth.schedule.ops import Op
from synth.schedule.rank_memory import exceeds_caps

F, B, W = OpKind.F, OpKind.B, OpKind.W

INTERVAL = 6

# At lower and lower limits; each takes as long as without caps.
_MOST_ATTEMPTS = 3


class Block(NamedTuple):
    """The slots of a rank's four passes for micro-batch 0; `first` is stage r.

    All four differ modulo six on every rank, so that the repeated blocks never collide.
    """

    forward_first: int
    forward_second: int
    backward_second: int
    backward_first: int


class Drawn(NamedTuple):
    """Every rank's ops as drawn, and the peak activations of the endless schedule, in stages."""

    order: list[list[Op]]
    peak: int


def drawn(num_ranks: int, num_micro_batches: int, block: Callable[[int], Block]) -> Drawn:
    """Repeat a building block, given by rank."""
    order = [_interleave(num_ranks, r, block(r), num_micro_batches) for r in range(num_ranks)]
    return Drawn(order, peak_of(num_ranks, block))


def repeated(setting: Setting, block: Callable[[int], Block]) -> Programs:
    """The schedule of a building block, given by rank, fitted to the setting's times.

    The limit of a rank is the peak of the repeated block, in micro-batches of one stage. It is the
    same on all ranks.
    """
    made = drawn(setting.num_ranks, setting.num_micro_batches, block)
    return fitted_to_memory(setting, made.order, made.peak)


def fitted_to_memory(setting: Setting, order: list[list[Op]], peak: int) -> Programs:
    """Fit a drawn order to the setting's times, within its own memory or the memory limits.

    If its own memory exceeds the memory limits, ever lower limits are tried, down to the memory of
    the drawn order. If none fits, the result is that without memory limits.

    Args:
        setting: with placement `v`.
        peak: the limit of a rank, in activations of its mean stage; if the order itself holds more,
            that.
    """
    needed = [peak_activation_bytes(setting.costs, program) for program in order]
    shares = (_share_bytes(setting, rank, peak) for rank in range(setting.num_ranks))
    own = [max(pair) for pair in zip(shares, needed, strict=True)]
    if setting.caps_bytes is None or exceeds_caps(needed, left_bytes(setting)):
        return fitted(setting, order, own)

    # An order that exceeds the limits says what to try next, however long it is.
    in_any_case = replace(setting, below_us=None)

    def make_at(limits_bytes: Sequence[int]) -> Programs:
        return fitted(in_any_case if limits_bytes == own else setting, order, limits_bytes)

    tried = list(within_caps(setting, make_at, own, needed, _MOST_ATTEMPTS))
    return (tried[-1] if tried[-1].fits else tried[0]).programs


def _share_bytes(setting: Setting, rank: int, count: int) -> int:
    """The bytes of `count` activations of a rank's mean stage."""
    stages = [stage for stage, _ in setting.placement.held[rank]]
    per_micro_batch = sum(activation_bytes(setting.costs, stage)[F] for stage in stages)
    return count * per_micro_batch // len(stages)


def peak_of(num_ranks: int, block: Callable[[int], Block]) -> int:
    """The most activations that a rank of the endless schedule holds, each until its W."""
    # A micro-batch lives for less than 12 D slots, so 2 D + 2 of them show the steady state.
    programs = [_interleave(num_ranks, r, block(r), 2 * num_ranks + 2) for r in range(num_ranks)]
    return max(_most_held(program) for program in programs)


def _most_held(program: list[Op]) -> int:
    held = most = 0
    for op in program:
        held += (op.kind is F) - (op.kind is W)
        most = max(most, held)
    return most


def _interleave(num_ranks: int, rank: int, block: Block, num_micro_batches: int) -> list[Op]:
    """A rank's ops in the order of their slots; each W goes into the next free slot after its B."""
    first, second = rank, 2 * num_ranks - 1 - rank
    stages = (F, first), (F, second), (B, second), (B, first)
    passes = {
        slot + INTERVAL * j: Op(kind, stage, j)
        for slot, (kind, stage) in zip(block, stages, strict=True)
        for j in range(num_micro_batches)
    }
    if len(passes) != 4 * num_micro_batches:
        raise RuntimeError("the repeated building block collides with itself")
    program: list[Op] = []
    owed: deque[Op] = deque()
    for slot in range(max(passes) + 1):
        op = passes.get(slot)
        if op is not None:
            program.append(op)
            if op.kind is B:
                owed.append(Op(W, op.stage, op.microbatch))
        elif owed:
            program.append(owed.popleft())
    return [*program, *owed]
