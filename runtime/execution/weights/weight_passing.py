"""One rank's weights and sums in a step: where they are, what brings them, and what they become.

Does for the executor what a program with UNSHARD, RESHARD and REDUCE_GRAD needs beside that of a
schedule whose weights stay:

    RECV of weights    hands them on, once they have arrived, over the links that the plan says
    F, R, B, BW        run with the weights of their visit as the module's parameters
    W, BW              add to the sum that has come, or to a new one
    B                  sets aside the gradients that it computes itself; its W adds them
    COLLECT            gathers weights into a buffer, or reduces the sum since the last one
                       (`stage_collectives`)
    REDUCE_GRAD        on a tree adds up sums and passes them on (`tree_sums`); where the host keeps
                       the stage, its sum is sent there
    STEP               takes the sum into the gradient that the optimizer uses

Sums are values of the plan's, so the first backward of a sum allocates it, and each buffer is freed
where the program says.
"""

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor

from synth.costs.costs import HOST
from synth.op_kinds import TIMELESS, VISITS, OpKind
from synth.schedule.lowering.lower import Action, Instruction, Lowered, Transfer
from synth.schedule.ops import Op, Value, ValueKind
from synth.schedule.weight_flow import Route, Sharded

from ..base.boundary import Tensors
from ..base.channels import Pending
from ..base.rank_context import RankContext
from ..transport.ordered_sends import OrderedSend, OrderedSends, receive_shared
from ..transport.thread_order import DeviceOrder, ThreadOrder
from .kept_protocol import KeptProtocol
from .stage_collectives import StageCollectives, gathered
from .tree_sums import passing_up, sums_below

Work = Callable[[], None]

_ON_LINKS = (ValueKind.WEIGHTS, ValueKind.GRAD_SUM)
_SUMS = (ValueKind.GRAD_SUM, ValueKind.GRAD_ACC)


class WeightPassing:
    """The weights and sums of one rank's program."""

    def __init__(
        self,
        context: RankContext,
        kept: Mapping[int, KeptProtocol],
        order: ThreadOrder | None = None,
    ) -> None:
        """Prepare a rank.

        Args:
            context: the rank, of a schedule with a `WeightFlow`.
            kept: what it keeps of its stages, by number.
            order: among the threads of links and the rank's own; None: that of the device.
        """
        lowered, rank, channels = context.lowered, context.rank, context.channels
        self._device, self._order = context.device, order or DeviceOrder(context.device)
        assert lowered.schedule.weights is not None
        self._lowered, self._flow = lowered, lowered.schedule.weights
        self._stages = context.stages
        self._kept, self._channels = kept, channels
        self._slots, self._table = context.slots, context.table
        self.collectives = StageCollectives(
            context.ops, self._flow, kept, self._slots, self._table, clock=context.clock
        )
        self._gathered_in_place = self._first_readers(rank)
        # The forwards alone, of an evaluation, leave no sums for STEP.
        self._reduces = any(op.kind == OpKind.REDUCE_GRAD for each in lowered.ops for op in each)
        self._shared = next((each.shared_host for each in kept.values()), None)
        self._from_home: list[Transfer] = []
        self._relayed: dict[Value, list[Transfer]] = {}
        self._to_host: dict[int, list[int]] = {}
        """By stage the numbers of the sends of sums to the host."""
        self._sort_sends(context.program)
        self._sends = OrderedSends(channels, _on_weight_links(lowered, rank), self._order)
        self._aside: dict[Op, dict[int, Tensor]] = {}

    def _sort_sends(self, program: Iterable[Instruction]) -> None:
        """Find the sends of a program that are made at home, relayed, or to the host."""
        for instruction in program:
            if instruction.action != Action.SEND:
                continue
            transfer, held = instruction.moved, instruction.held
            if held is None:
                self._from_home.append(transfer)
            elif transfer.target == HOST and transfer.value.kind in _SUMS:
                sums = self._to_host.setdefault(transfer.value.stage, [])
                sums.append(self._slots.send_number(transfer))
            elif held != transfer.value:
                self._relayed.setdefault(held, []).append(transfer)

    def _first_readers(self, rank: int) -> dict[Op, Value]:
        """The first op of each visit whose weights are gathered into buffers that stay."""
        visits, first = self._lowered.visits, self._lowered.first_node[rank]
        if visits is None or self._flow.sharded == Sharded.WEIGHTS:
            return {}
        ops = self._lowered.ops[rank]
        return {
            ops[visit.first_read - first]: gathered(ops[visit.node - first])
            for visit in visits.visits
            if visit.rank == rank and visit.node >= 0
        }

    def begin(self) -> None:
        """Begin a step: let the weights that are kept here be sent, each when its turn has come."""
        if self._shared is not None:
            self._shared.begin()
        self.collectives.begin()
        for kept in self._kept.values():
            kept.begin()
        self._sends.begin()
        for transfer in self._from_home:
            weights = self._kept[transfer.value.stage].weights.kept
            assert weights is not None
            self._sends.release(transfer, self._sends.made(weights))

    def end(self) -> None:
        """End a step that has run to its end."""
        self._sends.end()
        for kept in self._kept.values():
            kept.synchronize()
        if self._shared is not None:
            self._shared.end()

    def forget(self) -> None:
        """Drop everything of a step that failed."""
        self._sends.abort()
        self._aside.clear()
        self.collectives.forget()

    # Transfers

    def buffers(self, value: Value) -> Tensors:
        """Empty buffers for weights or a sum."""
        layout = self._kept[value.stage].weights.layout
        chosen = layout.weights if value.kind == ValueKind.WEIGHTS else layout.gradients
        return chosen.empty(self._device)

    def receive(self, buffers: Tensors, transfer: Transfer) -> Pending:
        """Post a receive, and let its value be handed on once it has arrived."""
        relayed = self._relayed.get(transfer.value)
        if relayed is None:
            return self._channels.receive(buffers, transfer)
        source, pending = receive_shared(self._channels, buffers, transfer, self._order)
        for onward in relayed:
            self._sends.release(onward, source)
        return pending

    def carries(self, transfer: Transfer) -> bool:
        """True if a transfer shares its link with weights, so that `send` is to send it."""
        return self._sends.carries(transfer)

    def send(self, tensors: Tensors | None, transfer: Transfer) -> OrderedSend:
        """Let a transfer be sent when its turn has come; weights have been let already."""
        if transfer.value.kind != ValueKind.WEIGHTS:
            if tensors is None:
                raise RuntimeError(f"{transfer} is to be sent before it was made")
            self._sends.release(transfer, self._sends.made(tensors))
        return self._sends.sent(transfer)

    # Ops

    def arrivals(self, op: Op) -> list[int]:
        """The slots of weights and sums for which an op waits."""
        if self._goes_up(op):
            return sums_below(self._lowered.effects, op, self._slots)
        if op.kind in VISITS:
            return []
        values = [v for v in self._lowered.effects.reads(op) if v.kind in _ON_LINKS]
        if op in self._gathered_in_place:
            values.append(self._gathered_in_place[op])
        return [self._slots.number(value) for value in values]

    def running(self, op: Op, work: Work) -> Work:
        """Return an op's work with the weights of its visit, and with the sum that it adds to."""
        if self._goes_up(op):
            kept = self._kept[op.stage]
            return passing_up(self._lowered.effects, op, kept, self._slots, self._table)
        if op.kind in TIMELESS or op.kind == OpKind.STEP:
            return work
        effects, kept = self._lowered.effects, self._kept[op.stage]
        read = {v.kind: self._slots.number(v) for v in effects.reads(op) if v.kind in _KINDS}
        made = {v.kind: self._slots.number(v) for v in effects.makes(op) if v.kind in _SUMS}
        visit = read.pop(ValueKind.WEIGHTS, None)
        if op.kind in (OpKind.W, OpKind.BW) and (read or made):
            of_sum = next(iter(read.values()), None), next(iter(made.values()), None)
            work = self._adding(kept, op, *of_sum, work)
        elif self._flow.sharded == Sharded.OPTIMIZER:
            work = self._in_backward(kept, op, work)
        elif op.kind == OpKind.B:
            work = self._setting_aside(kept, op, work)
        if visit is None:
            return work
        return self._visiting(kept, visit, work, saving=op.kind in (OpKind.F, OpKind.R))

    def _goes_up(self, op: Op) -> bool:
        return op.kind == OpKind.REDUCE_GRAD and self._flow.gradients == Route.TREE

    def _visiting(self, kept: KeptProtocol, slot: int, work: Work, *, saving: bool) -> Work:
        def run() -> None:
            weights = self._table.values[slot]
            if weights is None:
                raise RuntimeError("the weights of this op have not come")
            with kept.weights.attached(weights, saving=saving):
                work()

        return run

    def _adding(
        self, kept: KeptProtocol, op: Op, read: int | None, made: int | None, work: Work
    ) -> Work:
        weights, key = kept.weights, op._replace(kind=OpKind.B)
        stage = self._stages[op.stage]

        def run() -> None:
            values = self._table.values
            sums = weights.layout.gradients.sums(self._device) if read is None else values[read]
            if sums is None:
                raise RuntimeError("the sum that this op adds to has not come")
            reads = op.kind == OpKind.W and stage.reads_weights_in_w(op.microbatch)
            with weights.accumulating(sums, stand_ins=reads):
                for index, gradient in self._aside.pop(key, {}).items():
                    total = weights.trained[index].grad
                    assert total is not None
                    total.add_(gradient)
                work()
            if made is not None:
                values[made] = sums

        return run

    def _in_backward(self, kept: KeptProtocol, op: Op, work: Work) -> Work:
        if op.kind not in (OpKind.B, OpKind.W, OpKind.BW):
            return work

        def run() -> None:
            with kept.weights.in_backward():
                work()

        return run

    def _setting_aside(self, kept: KeptProtocol, op: Op, work: Work) -> Work:
        def run() -> None:
            found: dict[int, Tensor] = {}
            with kept.weights.capture_gradients(found):
                work()
            if found:
                self._aside[op] = found

        return run

    @torch.no_grad()
    def deliver(self, step: Op) -> None:
        """STEP: take the sum over all micro-batches into the gradient of what is kept here."""
        for value in self._lowered.effects.reads(step):
            if value.kind == ValueKind.GRAD_SUM:
                sums = self._table.values[self._slots.number(value)]
                if sums is None:
                    raise RuntimeError(f"{value} has not come")
                self._kept[step.stage].add(sums)
        for number in self._to_host.get(step.stage, ()):
            if number in self._table.leaving:
                self._table.leaving[number].wait()
        if self._reduces:
            self._kept[step.stage].add_arrived()
        self.collectives.end_reductions(step.stage)

    def leave_out_unused(self) -> None:
        """Remove the gradients of parameters that no op of any rank has used."""
        for kept in self._kept.values():
            kept.leave_out_unused()


_KINDS = (ValueKind.WEIGHTS, *_SUMS)


def _on_weight_links(lowered: Lowered, rank: int) -> list[Transfer]:
    """The transfers of all links from a rank that carry weights, each link's in its order."""
    own = [transfer for transfer in lowered.transfers if transfer.source == rank]
    targets = {t.target for t in own if t.value.kind == ValueKind.WEIGHTS}
    return [transfer for transfer in own if transfer.target in targets]
