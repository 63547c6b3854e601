"""Instances of a problem under two memory models: lifetimes of values, summed per stage copy.

The memory of boundary buffers in flight is not a sum of deltas of ops. Two models bracket it: the
relaxed one from below, the safe one nearly always from above.
"""

from collections.abc import Iterable

from synth.op_kinds import MEASURED, OpKind
from synth.schedule.lowering.effects import own_value_bytes
from synth.schedule.model import SMALLEST_BUFFERING, Buffering
from synth.schedule.ops import ValueKind
from synth.solver.instance.instance import BW, SPLIT, STEP, B, F, Instance, Lifetime, W
from synth.solver.instance.stage_copy import StageCopy, fusible
from synth.solver.problem import Problem


def relaxed_memory(problem: Problem) -> Instance:
    """Count only bytes that exist in every schedule of an order, a relaxation of the memory rule.

    While F runs its received activation is on the rank, while B runs its received gradient.
    Receives posted for later ops and sends waited for later are left out.
    """
    return _Builder(problem, SMALLEST_BUFFERING, is_safe=False).instance()


def safe_memory(problem: Problem, buffering: Buffering) -> Instance:
    """Count the most that receives posted ahead and sends waited for behind can add to any op."""
    return _Builder(problem, buffering, is_safe=True).instance()


def relaxed_for_fusion(problem: Problem) -> Instance:
    """Make `relaxed_memory` valid with fused BW too, by lowering B and W where BW is cheaper.

    A schedule with BW j becomes one with B j and W j in its place, B first: with B' = min(B, BW)
    and W' = min(W, BW − B') it takes no longer and the gradient leaves no later. In memory B'
    needs no more than BW did, and W' no more than the larger of its own need and what BW used,
    hence the minimum of both. So a bound of this instance bounds split and fused schedules.
    """
    instance = relaxed_memory(problem)
    copies = tuple(fusible(copy) for copy in instance.copies)
    # The values that B makes for W do not exist when BW does both.
    fused = {index for index, copy in enumerate(instance.copies) if copy.gains_by_fusion}
    lifetimes = (one for one in instance.lifetimes if one.made[1] != B or one.made[0] not in fused)
    return Instance(copies, instance.headroom_bytes, tuple(lifetimes))


class _Builder:
    """Adds up the lifetimes of values by stage copy and kind of op."""

    def __init__(self, problem: Problem, buffering: Buffering, is_safe: bool) -> None:
        self.problem, self.buffering, self.is_safe = problem, buffering, is_safe
        self.costs, self.placement = problem.costs, problem.placement
        self.num_stages = self.placement.num_stages
        self.own_bytes = own_value_bytes(self.costs.stages, self.placement)
        self.lifetimes: list[Lifetime] = []
        self.deltas = [
            dict.fromkeys(SPLIT, 0) for _ in range(len(self.placement.ranks) * self.num_stages)
        ]

    def instance(self) -> Instance:
        copies = range(len(self.deltas))
        for copy in copies:
            self._add_deltas(copy)
        in_flight = self._in_flight_bytes()
        caps, ranks = self.problem.caps_bytes, range(self.placement.num_ranks)
        headrooms = tuple(caps[r] - self.problem.static_bytes(r) if caps else None for r in ranks)
        made = tuple(self._copy(copy, in_flight) for copy in copies)
        return Instance(made, headrooms, tuple(self.lifetimes))

    def _rank(self, copy: int) -> int:
        replica, stage = divmod(copy, self.num_stages)
        return self.placement.rank_of(stage, replica)

    def _above(self, copy: int) -> int | None:
        return copy - 1 if copy % self.num_stages else None

    def _below(self, copy: int) -> int | None:
        return copy + 1 if (copy + 1) % self.num_stages else None

    def _is_local(self, copy: int, other: int | None) -> bool:
        return other is not None and self._rank(copy) == self._rank(other)

    def _add_lifetime(
        self, num_bytes: int, made: tuple[int, OpKind], freed: tuple[int, OpKind]
    ) -> None:
        """Add bytes that exist from the end of one op to the end of another."""
        self.lifetimes.append(Lifetime(num_bytes, made, freed))
        self.deltas[made[0]][made[1]] += num_bytes
        self.deltas[freed[0]][freed[1]] -= num_bytes

    def _add_deltas(self, copy: int) -> None:
        """Add the values kept by F and left by B, and the boundary values above and below."""
        stage = self.costs.stages[copy % self.num_stages]
        self._add_lifetime(stage.saved_bytes, (copy, F), (copy, B))
        self._add_lifetime(stage.saved_w_bytes, (copy, B), (copy, W))
        above, below = self._above(copy), self._below(copy)
        if above is not None:
            size = self.costs.stages[above % self.num_stages].output_bytes
            if self._is_local(copy, above):
                self._add_local_boundary(above, copy)
            elif stage.input_until != F:
                self._add_lifetime(size, (copy, F), (copy, stage.input_until))
        if below is not None and not self._is_local(copy, below):
            size = stage.output_bytes
            if stage.output_until != F:
                self._add_lifetime(size, (copy, F), (copy, stage.output_until))
            if stage.gradient_until == W:
                self._add_lifetime(stage.returned_bytes, (copy, B), (copy, W))

    def _add_local_boundary(self, above: int, below: int) -> None:
        """Add an activation and its gradient between two stages of one rank, which are not sent."""
        upper = self.costs.stages[above % self.num_stages]
        lower = self.costs.stages[below % self.num_stages]
        size, returned = (self.own_bytes[kind][above] for kind in (ValueKind.ACT, ValueKind.GRAD))
        self._add_lifetime(returned, (below, B), (above, upper.gradient_until))
        # Until the stage above lets go of its output, and the one below of its input. B above
        # comes after B below; W's have no order, and then one of the two counts, or both.
        if upper.output_until == F or (upper.output_until, lower.input_until) == (B, W):
            self._add_lifetime(size, (above, F), (below, lower.input_until))
            if upper.output_until == B and self.is_safe:
                self._add_lifetime(size, (above, F), (above, B))
            return
        self._add_lifetime(size, (above, F), (above, upper.output_until))
        if lower.input_until == W and self.is_safe:
            self._add_lifetime(size, (above, F), (below, W))

    def _in_flight_bytes(self) -> list[int]:
        """Return by rank the most that posted receives and sends in flight can add."""
        largest = [0] * self.placement.num_ranks
        for copy in range(len(self.deltas)):
            below = self._below(copy)
            if below is not None and not self._is_local(copy, below):
                stage = self.costs.stages[copy % self.num_stages]
                size = max(stage.output_bytes, stage.returned_bytes)
                for rank in (self._rank(copy), self._rank(below)):
                    largest[rank] = max(largest[rank], size)
        # The safe model has one more: the next receive is posted before the present send is waited
        # for, and the exact number depends on the order.
        ops = self.buffering.receive_ahead + self.buffering.send_behind + self.is_safe
        return [ops * size for size in largest]

    def _copy(self, copy: int, in_flight: list[int]) -> StageCopy:
        replica, stage = divmod(copy, self.num_stages)
        rank, above, below = self._rank(copy), self._above(copy), self._below(copy)
        first, count = self.problem.share(replica)
        delta = {**self.deltas[copy]}
        delta[BW] = delta[B] + delta[W]
        peak_above = self._peaks_above(copy, delta)
        ways, lead_us = (0, 0), 0
        if below is not None and not self._is_local(copy, below):
            ends = (rank, self._rank(below))
            ways = (self.costs.boundary_us(stage, *ends), self.costs.return_us(stage, *ends[::-1]))
            lead_us = self.problem.lead_us(stage, ways[1])
        return StageCopy(
            rank=rank,
            stage=stage,
            replica=replica,
            first=first,
            num_micro_batches=count,
            duration_us={
                **{kind: self.costs.stages[stage].duration_us[kind] for kind in MEASURED},
                STEP: self.costs.step_us(stage, self.problem.stages_of(rank)),
            },
            delta_bytes=delta,
            peak_above_bytes={kind: size + in_flight[rank] for kind, size in peak_above.items()},
            above=above,
            below=below,
            down_us=ways[0],
            up_us=ways[1] - lead_us,
            reduce_us=self.problem.reduction_us(stage),
            beside_bytes=self._least_beside_saved_bytes(copy, delta),
            lead_us=lead_us,
        )

    def _least_beside_saved_bytes(self, copy: int, delta: dict[OpKind, int]) -> int | None:
        """Return a lower bound on the bytes beside saved activations, when most are in flight.

        On a rank that holds one stage, the last of several F in a row is followed by one of two:

        - a B: the buffer of the gradient that it reads exists while the F's output still does;
        - a W: what it frees, retained by its B, existed when the F ended.

        So besides the output there is at least the lesser of the two. No fewer micro-batches are in
        flight then than after any F before. None: the rank holds several stages, or the last one.
        """
        below, stage = self._below(copy), self.costs.stages[copy % self.num_stages]
        if len(self.placement.held[self._rank(copy)]) > 1 or below is None:
            return None
        # F keeps all, B frees all but what W reads.
        retained = delta[F] + delta[B]
        sent = stage.sent_output_bytes if stage.output_until == F else 0
        return sent + max(0, min(stage.returned_bytes, retained))

    def _peaks_above(self, copy: int, delta: dict[OpKind, int]) -> dict[OpKind, int]:
        """Return by kind the peak above the usage before an op, while it runs or right after it."""
        stage = self.costs.stages[copy % self.num_stages]
        above, below = self._above(copy), self._below(copy)
        received = sent_up = received_up = sent = 0
        if above is not None and not self._is_local(copy, above):
            sender = self.costs.stages[above % self.num_stages]
            received, sent_up = sender.output_bytes, self.own_bytes[ValueKind.GRAD][above]
        if below is not None and not self._is_local(copy, below):
            received_up = stage.returned_bytes
            sent = stage.sent_output_bytes if stage.output_until == F else 0
        rise = stage.rise_bytes
        return {
            F: max(received + rise[F], delta[F] + sent),
            B: max(received_up + rise[B], delta[B] + sent_up),
            W: max(rise[W], delta[W], 0),
            BW: max(received_up + rise[BW], delta[BW] + sent_up),
            STEP: rise[STEP],
        }


def distinct(instances: Iterable[Instance]) -> list[Instance]:
    """Drop duplicates: without boundary bytes all memory models are the same."""
    found: list[Instance] = []
    for instance in instances:
        if instance not in found:
            found.append(instance)
    return found
