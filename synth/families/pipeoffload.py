"""Offloading saved activations to the host (PipeOffload: Wan et al. 2025, arXiv 2503.01328).

A micro-batch of a stage leaves right after its forward and comes back just in time for its
backward, while other ops run:

    rank   F0 O0 F1 O1 F2 …          L0 BW2  BW0          O: it leaves     L: it comes back
    out       [== 0 ==][== 1 ==]
    back                             [== 0 ==]            on links of their own

The paper's own schedules are `uniform`: PO-H offloads half of the stages, PO-F all of them, on
GIS-H's block, repeated micro-batch by micro-batch (`uniform` in `gis.py`). One F of every stage is
due every v turns, so that moves are spread out, and the stages whose backwards come first hold few
activations. With two rounds PO-H holds D / 2 micro-batches of a stage, a quarter of interleaved
1F1B's 2 D. Without `uniform` the same moves are made on interleaved 1F1B, or with one round on
1F1B, which fill and drain faster.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from synth.errors import SynthError
from synth.families import gis, interleaved, one_f_one_b
from synth.families._lib.buffering_choice import patient
from synth.families._lib.family import Family, Programs, Setting
from synth.families._lib.options import ChoiceOption, rounds
from synth.op_kinds import MOVES, OpKind
from synth.schedule.lowering.lower import lower
from synth.schedule.measured.execution_trace import OpSpan, planned_spans
from synth.schedule.model import Buffering, Schedule
from synth.schedule.ops import Op
from synth.schedule.rank_memory import peak_bytes
from synth.schedule.simulate import simulate

_FULL, _HALF = "full", "half"
_GROUPS, _UNIFORM = "groups", "uniform"


def make(setting: Setting) -> Programs:
    """Offload as much as the host's link can take away and bring back between F and B.

    The paper's selective offload takes the activations that live longest, because that lowers the
    peak most: with `half`, those of the stages of the first half of the rounds, whose backwards
    come last. As in the authors' program with one stream each way, a move out starts at once, and a
    move back as late as the moves after it on the link allow, by the clock of the schedule without
    offloading. An activation that would have to come back before it has left stays. So do all
    activations of a rank that would hold more with offloading, because short-lived ones exist twice
    while they leave and return.
    """
    if setting.costs.links.host is None:
        raise SynthError(
            "pipeoffload needs a link to the host's memory, and the profile has none; add "
            '`"host": {"latency_us": …, "bandwidth_bytes_per_s": …}` to its links'
        )
    if setting.count("rounds") == 1 and (
        setting.options["amount"] == _HALF or setting.options["block"] == _UNIFORM
    ):
        raise SynthError(
            "pipeoffload:1 has no half of a rank's stages to offload, and no rounds to repeat "
            "uniformly; give pipeoffload:1,full"
        )
    base = _base(setting)
    times = planned_spans(simulate(lower(base, setting.costs)))
    moved = tuple(
        tuple(_offloading(setting, program, spans[: len(program)]))
        for program, spans in zip(base.programs, times, strict=True)
    )
    here, away = (
        zip(listed, peak_bytes(lower(replace(base, programs=listed), setting.costs)), strict=True)
        for listed in (base.programs, moved)
    )
    return [
        program if peak <= usual else still
        for (still, usual), (program, peak) in zip(here, away, strict=True)
    ]


def _base(setting: Setting) -> Schedule:
    """The schedule without offloading."""
    if setting.options["block"] == _UNIFORM:
        programs: Programs = gis.uniform(setting)
    elif setting.count("rounds") == 1:
        programs = one_f_one_b.in_order(setting)
    else:
        programs = interleaved.in_order(_grouped(setting))
    listed = tuple(tuple(program) for program in programs)
    made = Schedule(setting.placement, setting.num_micro_batches, listed)
    return replace(made, buffering=buffering(setting, made))


def _grouped(setting: Setting) -> Setting:
    """The same for interleaved 1F1B, in even groups."""
    return replace(setting, options={**setting.options, "group": 0})


class _Move(NamedTuple):
    """A micro-batch of a stage: the places of its F, its B, and its RELOAD."""

    forward: int
    backward: int
    reload: int


def _offloading(setting: Setting, program: tuple[Op, ...], spans: Sequence[OpSpan]) -> list[Op]:
    """A rank's program with its moves."""
    moves = _in_time(setting, program, spans, _chosen(setting, program))
    leaves = {move.forward for move in moves}
    returns: dict[int, list[Op]] = {}
    for move in sorted(moves, key=lambda move: move.backward):
        op = program[move.backward]._replace(kind=OpKind.RELOAD)
        returns.setdefault(move.reload, []).append(op)
    ops: list[Op] = []
    for place, op in enumerate(program):
        ops += [*returns.get(place, []), op]
        ops += [op._replace(kind=OpKind.OFFLOAD)] if place in leaves else []
    return ops


def _chosen(setting: Setting, program: tuple[Op, ...]) -> list[tuple[int, int]]:
    """The places of F and B of the micro-batches to move, in the order of the B's."""
    num_rounds = setting.count("rounds")
    moved_rounds = num_rounds if setting.options["amount"] == _FULL else (num_rounds + 1) // 2
    forwards = {op[1:]: place for place, op in enumerate(program) if op.kind == OpKind.F}
    return [
        (forwards[op[1:]], place)
        for place, op in enumerate(program)
        if op.kind in (OpKind.B, OpKind.BW) and op.stage // setting.num_ranks < moved_rounds
    ]


def _in_time(
    setting: Setting,
    program: tuple[Op, ...],
    spans: Sequence[OpSpan],
    chosen: list[tuple[int, int]],
) -> list[_Move]:
    """The moves that are out before they must come back, with the places of their RELOADs."""
    host, stages = setting.costs.links.host, setting.costs.stages
    assert host is not None
    times_us = {s: host.transfer_us(stages[s].saved_bytes) for s in {op.stage for op in program}}
    arrived_us, free_us = {}, 0
    for forward, _ in sorted(chosen):
        free_us = max(free_us, spans[forward].end_us) + times_us[program[forward].stage]
        arrived_us[forward] = free_us
    moves, next_us = [], spans[-1].end_us
    for forward, backward in reversed(chosen):
        at_us = min(next_us, spans[backward].start_us) - times_us[program[backward].stage]
        reload = _last_place(spans, backward, at_us)
        if reload > forward + 1 and at_us >= arrived_us[forward]:
            moves.append(_Move(forward, backward, reload))
            next_us = at_us
    return moves


def _last_place(spans: Sequence[OpSpan], backward: int, at_us: int) -> int:
    """The last place, not after the backward, that the rank has reached by a moment."""
    place = backward
    while place > 0 and spans[place - 1].end_us > at_us:
        place -= 1
    return place


def buffering(setting: Setting, schedule: Schedule) -> Buffering:
    """The buffering of the order without offloading: longer sends keep moves longer."""
    if setting.options["block"] == _UNIFORM:
        still = (tuple(op for op in ops if op.kind not in MOVES) for ops in schedule.programs)
        return patient(setting, replace(schedule, programs=tuple(still)))
    if setting.count("rounds") == 1:
        return Buffering()
    return interleaved.buffering(_grouped(setting), schedule)


FAMILY = Family(
    "pipeoffload",
    "Wan et al. 2025, arXiv 2503.01328, sections 2 and 3",
    make,
    "looped:{rounds}",
    options=(
        rounds(2),
        ChoiceOption("amount", (_HALF, _FULL)),
        ChoiceOption("block", (_GROUPS, _UNIFORM)),
    ),
    timed=True,
    offloads=True,
    buffering=buffering,
)
