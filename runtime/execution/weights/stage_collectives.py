"""One rank's collectives in a step: all-gathers of weights, and reduce-scatters of gradients."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext

from synth.op_kinds import OpKind
from synth.schedule.lowering.collectives import Collective, CollectiveKind
from synth.schedule.ops import Op, Value, ValueKind
from synth.schedule.weight_flow import Sharded, WeightFlow

from ..base.boundary import Tensors
from ..base.clock import OpClock
from ..base.step_table import Slots, StepTable
from .kept_protocol import KeptProtocol, StartedCollective
from .share_collectives import PendingCollective

# The ops that start collectives.
_CALLS = {CollectiveKind.GATHER: OpKind.UNSHARD, CollectiveKind.SCATTER: OpKind.REDUCE_GRAD}


def gathered(unshard: Op) -> Value:
    """The weights that an UNSHARD gathers."""
    return Value(ValueKind.WEIGHTS, *unshard[1:])


class StageCollectives:
    """The collectives of a rank's stages, with the buffers that they fill."""

    def __init__(
        self,
        ops: Iterable[Op],
        flow: WeightFlow,
        kept: Mapping[int, KeptProtocol],
        slots: Slots,
        table: StepTable,
        *,
        clock: OpClock,
    ) -> None:
        """Prepare a rank.

        Args:
            flow: says which part of a stage's state is sharded.
            kept: what the rank keeps of its stages.
            slots: the slots of the table's values.
            table: shared by all steps.
            clock: records when collectives start, and the waits for them.
        """
        self._calls = {
            (op.kind, op.stage, op.microbatch): op for op in ops if op.kind in _CALLS.values()
        }
        self._flow, self._kept, self._slots, self._table = flow, kept, slots, table
        self._clock = clock
        self._scattering: dict[Collective, PendingCollective] = {}
        self._reduced: set[int] = set()
        """The stages whose whole gradients this step has reduced."""

    def begin(self) -> None:
        """Begin a step."""
        self._reduced.clear()

    def forget(self) -> None:
        """Drop everything of a step that failed."""
        self._scattering.clear()

    def start(self, collective: Collective) -> None:
        """Start an all-gather of weights, or a reduce-scatter of the newly accumulated gradient."""
        kept = self._kept[collective.stage]
        self._clock.ready(collective)
        call = self._calls[_CALLS[collective.kind], collective.stage, collective.number]
        if collective.kind == CollectiveKind.GATHER:
            started = kept.start_all_gather(collective)
            arrived = PendingCollective(started, self._waiting(collective))
            self._table.arriving[self._slots.number(gathered(call))] = arrived
            return
        sums = self._to_reduce(kept, call)
        started = kept.start_reduce_scatter(collective, sums) if sums else StartedCollective((), ())
        self._scattering[collective] = PendingCollective(started, self._waiting(collective))

    def _to_reduce(self, kept: KeptProtocol, call: Op) -> Tensors | None:
        """The gradient accumulated since the last reduce-scatter; None: the only home has it."""
        if self._flow.sharded != Sharded.OPTIMIZER:
            return self._table.values[self._slots.number(Value(ValueKind.GRAD_ACC, *call[1:]))]
        if kept.totals is not None:
            if call.stage in self._reduced:
                raise RuntimeError("gradients that are kept whole are to be reduced once in a step")
            self._reduced.add(call.stage)
        return kept.totals

    def end_reduction(self, collective: Collective) -> None:
        """Wait for a reduce-scatter, and keep this rank's share of its result."""
        collecting = self._scattering.pop(collective, None)
        if collecting is None:
            return  # a STEP has waited for it
        sums, kept = collecting.wait(), self._kept[collective.stage]
        if kept.totals is not None:
            kept.clear_other_shares()
        elif sums:
            kept.add(sums)

    def end_reductions(self, stage: int) -> None:
        """End all reduce-scatters of a stage that have been started."""
        for collective in [c for c in self._scattering if c.stage == stage]:
            self.end_reduction(collective)

    def _waiting(self, collective: Collective) -> Callable[[], AbstractContextManager[object]]:
        clock = self._clock
        return lambda: clock.wait(collective) if clock.recording else nullcontext()
