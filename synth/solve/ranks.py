"""What the search needs of each rank, as plain integers: durations, bytes, delays."""

from dataclasses import dataclass
from typing import NamedTuple

from synth.costs import StageCosts
from synth.kinds import OpKind
from synth.schedule.model import Buffering
from synth.solve.problem import Problem

F, B, W, BW, STEP = OpKind.F, OpKind.B, OpKind.W, OpKind.BW, OpKind.STEP
SPLIT = (F, B, W)


class Rank(NamedTuple):
    """One rank that holds one stage.

    A micro-batch holds `live_f_bytes` between its F and its B, and `live_b_bytes` between its B
    and its W. `need_bytes[kind]` is how far memory is above the sum of these (before the op) while
    an op runs and right after it: the boundary values that the op reads and makes, and its
    workspace. `room_bytes` is the cap less the static bytes, None without a cap.

    `receive_bytes` and `send_bytes` are its boundary values to the rank above and below, and
    `sent_bytes` is what an activation that is being sent adds to the live bytes.

    `down_us` is the transfer time of activations to the next rank, `up_us` of gradients from it.
    """

    duration_us: dict[OpKind, int]
    live_f_bytes: int
    live_b_bytes: int
    need_bytes: dict[OpKind, int]
    room_bytes: int | None
    down_us: int
    up_us: int
    receive_bytes: int
    send_bytes: int
    sent_bytes: int

    def level_bytes(self, forwards: int, backwards: int, weights: int) -> int:
        """Live bytes after so many F, B and W, boundary values in flight not counted."""
        held_f, held_b = forwards - backwards, backwards - weights
        return held_f * self.live_f_bytes + held_b * self.live_b_bytes

    @property
    def gains_by_fusion(self) -> bool:
        """Whether BW is ever better than B with W right behind it, in time or in memory."""
        return _fusible(self) != self

    def most_waiting(self, num_micro_batches: int) -> int:
        """The most micro-batches between their B and their W that memory allows."""
        if self.room_bytes is None or self.live_b_bytes == 0:
            return num_micro_batches
        return min(num_micro_batches, self.room_bytes // self.live_b_bytes)

    def allows(self, kind: OpKind, forwards: int, backwards: int, weights: int) -> bool:
        """Whether the op fits in memory after so many F, B and W."""
        if self.room_bytes is None:
            return True
        level = self.level_bytes(forwards, backwards, weights)
        return level + self.need_bytes[kind] <= self.room_bytes


@dataclass(frozen=True)
class Ranks:
    """All ranks of a problem, and the delays between them."""

    ranks: tuple[Rank, ...]
    num_micro_batches: int

    def __len__(self) -> int:
        return len(self.ranks)

    def __getitem__(self, rank: int) -> Rank:
        return self.ranks[rank]

    def head_us(self, rank: int) -> int:
        """When the first F of a rank can start: it is the first op there in every schedule."""
        return sum(r.duration_us[F] + r.down_us for r in self.ranks[:rank])

    def round_trip_us(self, rank: int) -> int:
        """The least time from the end of F to the start of B of one micro-batch."""
        below = self.ranks[rank + 1 :]
        compute = sum(r.duration_us[F] + r.duration_us[B] for r in below)
        return compute + sum(r.down_us + r.up_us for r in self.ranks[rank:-1])

    def way_back_us(self, rank: int, above: int) -> int:
        """The least time from the end of B on `rank` to the end of the same B on rank `above`."""
        between = self.ranks[above:rank]
        return sum(r.up_us + r.duration_us[B] for r in between)


def certain(problem: Problem) -> Ranks:
    """Count only what is there in every schedule of this order: a relaxation of the memory rule.

    While F runs its received activation is on the rank, while B runs its received gradient;
    receives posted for later ops and sends waited for later are left out.
    """
    return _ranks(problem, Buffering(0, 0))


def cautious(problem: Problem, buffering: Buffering) -> Ranks:
    """Count the most that receives posted ahead and sends waited for behind can add to any op."""
    return _ranks(problem, buffering)


def relaxed_for_fusion(problem: Problem) -> Ranks:
    """Make `certain` valid with fused BW too, by lowering B and W where BW is cheaper.

    A schedule with BW j becomes one with B j and W j in its place, B first: with B' = min(B, BW)
    and W' = min(W, BW − B') it takes no longer and the gradient leaves no later. In memory B'
    needs no more than BW did, and W' no more than the larger of what it needs itself and what BW
    used, hence the minimum of both. So a bound on this problem bounds split and fused schedules.
    """
    ranks = certain(problem)
    return Ranks(tuple(_fusible(rank) for rank in ranks.ranks), ranks.num_micro_batches)


def _fusible(rank: Rank) -> Rank:
    durations, need = rank.duration_us, rank.need_bytes
    backward_us = min(durations[B], durations[BW])
    weight_us = min(durations[W], durations[BW] - backward_us)
    # At W the level already has B's change in it; at BW it has not.
    fused_need = need[BW] + rank.live_f_bytes - rank.live_b_bytes
    return rank._replace(
        duration_us={**durations, B: backward_us, W: weight_us},
        need_bytes={**need, B: min(need[B], need[BW]), W: min(need[W], fused_need)},
    )


def _ranks(problem: Problem, buffering: Buffering) -> Ranks:
    return Ranks(
        tuple(_rank(problem, index, buffering) for index in range(problem.num_ranks)),
        problem.num_micro_batches,
    )


def _rank(problem: Problem, index: int, buffering: Buffering) -> Rank:
    costs, last = problem.costs, problem.num_ranks - 1
    stage = costs.stages[index]
    input_bytes = costs.stages[index - 1].output_bytes if index else 0
    output_bytes = stage.output_bytes if index < last else 0
    live_f, live_b = _live_bytes(stage, input_bytes, output_bytes)
    in_flight = buffering.receive_ahead * max(input_bytes, output_bytes)
    in_flight += buffering.send_behind * max(input_bytes, output_bytes)
    need = _needs(stage, input_bytes, output_bytes, live_f, live_b)
    caps = problem.caps_bytes
    return Rank(
        duration_us={kind: stage.duration_us[kind] for kind in OpKind},
        live_f_bytes=live_f,
        live_b_bytes=live_b,
        need_bytes={kind: num_bytes + in_flight for kind, num_bytes in need.items()},
        room_bytes=None if caps is None else caps[index] - stage.static_bytes,
        down_us=costs.boundary_us(index, index, index + 1) if index < last else 0,
        up_us=costs.boundary_us(index, index + 1, index) if index < last else 0,
        receive_bytes=input_bytes,
        send_bytes=output_bytes,
        sent_bytes=_sent_bytes(stage, output_bytes),
    )


def _live_bytes(stage: StageCosts, input_bytes: int, output_bytes: int) -> tuple[int, int]:
    """What one micro-batch holds between F and B, and between B and W."""
    live_f, live_b = stage.saved_bytes, stage.saved_w_bytes
    for until, num_bytes in ((stage.input_until, input_bytes), (stage.output_until, output_bytes)):
        live_f += num_bytes if until != F else 0
        live_b += num_bytes if until == W else 0
    live_b += output_bytes if stage.gradient_until == W else 0
    return live_f, live_b


def _sent_bytes(stage: StageCosts, output_bytes: int) -> int:
    """What sending adds to the live bytes: nothing where the layer holds its output anyway."""
    return output_bytes if stage.output_until == F else 0


def _needs(
    stage: StageCosts, input_bytes: int, output_bytes: int, live_f: int, live_b: int
) -> dict[OpKind, int]:
    """Bytes above the level before each op: the highest of while it runs and right after it."""
    rise = stage.rise_bytes
    sent = _sent_bytes(stage, output_bytes)
    return {
        F: max(input_bytes + rise[F], live_f + sent),
        B: max(output_bytes + rise[B], live_b - live_f + input_bytes),
        W: max(rise[W], 0),
        BW: max(output_bytes + rise[BW], input_bytes - live_f),
        STEP: rise[STEP],
    }
