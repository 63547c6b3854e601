"""Times and bytes of the V's four passes, by pass and rank (placement `v`).

Rank r holds stage r and stage 2D − 1 − r. A micro-batch passes every rank four times, and each
pass goes from rank to rank in one direction:

    0  F of the first half   down        2  B of the second half  down
    1  F of the second half  up          3  B of the first half   up
"""

from collections.abc import Sequence
from dataclasses import dataclass

from synth.costs.costs import Costs
from synth.families._lib.activations import growth_bytes
from synth.op_kinds import OpKind

F, B, W = OpKind.F, OpKind.B, OpKind.W

FIRST_F, SECOND_F, SECOND_B, FIRST_B = range(4)
KINDS = (F, F, B, B)


@dataclass(frozen=True)
class PassCosts:
    """Times and bytes by pass and rank; the last two rows of times and bytes are the W's.

    Attributes:
        took_us: the durations of passes 0 to 3; rows 4 and 5 are the W's of passes 2 and 3.
        lag_us: the transfer time from the previous rank in the direction of the pass; 0 without
            one.
        growth_bytes: the change of a rank's bytes by the op.
    """

    num_micro_batches: int
    took_us: tuple[tuple[int, ...], ...]
    lag_us: tuple[tuple[int, ...], ...]
    growth_bytes: tuple[tuple[int, ...], ...]

    @property
    def num_ranks(self) -> int:
        return len(self.took_us[0])

    @property
    def work_us(self) -> list[int]:
        return [self.num_micro_batches * sum(column) for column in zip(*self.took_us, strict=True)]


def stage_of(number: int, rank: int, num_ranks: int) -> int:
    return rank if number in (FIRST_F, FIRST_B) else 2 * num_ranks - 1 - rank


def costs_by_pass(costs: Costs, num_micro_batches: int) -> PassCosts:
    """The costs of 2D stages on placement `v`, by pass and rank."""
    ranks = range(costs.num_stages // 2)
    d = len(ranks)
    grown = [growth_bytes(costs, stage) for stage in range(costs.num_stages)]
    ops = [(KINDS[number], number) for number in range(4)] + [(W, SECOND_B), (W, FIRST_B)]

    def row(table: Sequence[dict[OpKind, int]]) -> tuple[tuple[int, ...], ...]:
        return tuple(
            tuple(table[stage_of(number, r, d)][kind] for r in ranks) for kind, number in ops
        )

    return PassCosts(
        num_micro_batches,
        row([stage.duration_us for stage in costs.stages]),
        tuple(tuple(_lag_us(costs, number, r) for r in ranks) for number in range(4)),
        row(grown),
    )


def _lag_us(costs: Costs, number: int, rank: int) -> int:
    """Return the transfer time of a pass's input from the neighbour that sends it."""
    d = costs.num_stages // 2
    source = rank - 1 if number in (FIRST_F, SECOND_B) else rank + 1
    if not 0 <= source < d:
        return 0
    boundary = min(stage_of(number, rank, d), stage_of(number, source, d))
    is_forward = number in (FIRST_F, SECOND_F)
    passed_us = costs.boundary_us if is_forward else costs.return_us
    return passed_us(boundary, source, rank)


def averaged(pass_costs: PassCosts) -> PassCosts:
    """The costs with F, B, W, transfers and sizes replaced by their means over stages and ranks.

    The means are rounded to whole microseconds and bytes; a micro-batch frees as many as it
    allocates.
    """
    took = pass_costs.took_us
    f_us, b_us, w_us = (_mean(took[i] + took[i + 1]) for i in (FIRST_F, SECOND_B, 4))
    sent = [us for number in range(4) for us, r in _sent(pass_costs, number)]
    lag_us = _mean(sent) if sent else 0
    grows = pass_costs.growth_bytes
    f, w = _mean(grows[FIRST_F] + grows[SECOND_F]), _mean(grows[4] + grows[5])
    d = pass_costs.num_ranks

    def rows(*values: int) -> tuple[tuple[int, ...], ...]:
        return tuple((value,) * d for value in values for _ in range(2))

    lags = []
    for number in range(4):
        receiving = {r for _, r in _sent(pass_costs, number)}
        lags.append(tuple(lag_us if r in receiving else 0 for r in range(d)))
    return PassCosts(
        pass_costs.num_micro_batches, rows(f_us, b_us, w_us), tuple(lags), rows(f, -f - w, w)
    )


def _mean(values: Sequence[int]) -> int:
    return round(sum(values) / len(values))


def _sent(pass_costs: PassCosts, number: int) -> list[tuple[int, int]]:
    """The transfers of a pass: the time of each, and the receiving rank."""
    first = 1 if number in (FIRST_F, SECOND_B) else 0
    ranks = range(first, first + pass_costs.num_ranks - 1)
    return [(pass_costs.lag_us[number][r], r) for r in ranks]


def units_bytes(pass_costs: PassCosts) -> list[int]:
    """The most bytes of a micro-batch on a stage, for each rank the mean of its two stages."""
    grows = pass_costs.growth_bytes
    return [
        max(grows[FIRST_F][r], -grows[5][r]) + max(grows[SECOND_F][r], -grows[4][r]) + 1 >> 1
        for r in range(pass_costs.num_ranks)
    ]
