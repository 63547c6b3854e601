"""The trace file: the start and end of every op and transfer of some iterations.

The simulation of a plan and a run of it have the same form, so that they can be compared.
"""

import json
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, ClassVar, Self

from pydantic import AfterValidator, Field, NonNegativeInt, PositiveFloat, PositiveInt

from synth.costs.costs import HOST
from synth.errors import Mismatch
from synth.records.record import FileRecord, Record
from synth.schedule.files.fingerprint import schedule_fingerprint
from synth.schedule.files.plan_file import Plan
from synth.schedule.lowering.collectives import Collective, CollectiveKind
from synth.schedule.lowering.programs import Transfer
from synth.schedule.measured.execution_trace import CommunicationSpan, ExecutionTrace, OpSpan
from synth.schedule.ops import Op, Value
from synth.units import MOST_SUMMABLE

# Microseconds, and bytes or microseconds: small enough for every sum to stay exact in 64 bits.
_Moment = Annotated[int, Field(ge=-MOST_SUMMABLE, le=MOST_SUMMABLE)]
_Count = Annotated[int, Field(ge=0, le=MOST_SUMMABLE)]


class Source(StrEnum):
    """The origin of the times; `emulated` is a run on emulated devices."""

    SIMULATED = "simulated"
    MEASURED = "measured"
    EMULATED = "emulated"


def _is_op(token: str) -> str:
    Op.parse(token)
    return token


def _is_value(text: str) -> str:
    Value.parse(text)
    return text


class TracedOp(Record):
    """One op of one rank, in microseconds from the start of the iteration."""

    op: Annotated[str, AfterValidator(_is_op)]
    start_us: _Moment
    end_us: _Moment


class TracedTransfer(Record):
    """The move of a value to another rank, or to or from the host (−1).

    `start_us` is when both ends were ready. Not `exact`: no rank waited for it, and it had ended
    by `end_us`.
    """

    value: Annotated[str, AfterValidator(_is_value)]
    source: int = Field(ge=HOST)
    target: int = Field(ge=HOST)
    num_bytes: _Count
    planned_us: _Count
    start_us: _Moment
    end_us: _Moment
    exact: bool = True


class TracedReduction(Record):
    """A collective of a stage's gradients or weights; the times are defined as for a transfer.

    `number` is the visit of an all-gather, the REDUCE_GRAD of a reduce-scatter, or, without a
    flush, the update of an all-reduce.
    """

    kind: CollectiveKind = CollectiveKind.ALL_REDUCE
    stage: NonNegativeInt
    number: NonNegativeInt = 0
    ranks: tuple[NonNegativeInt, ...]
    num_bytes: _Count
    planned_us: _Count
    start_us: _Moment
    end_us: _Moment
    exact: bool = True


class TracedStep(Record):
    """One iteration; `step_us` is its whole time, including time outside of ops."""

    step: _Count
    step_us: _Count
    ops: tuple[tuple[TracedOp, ...], ...] = Field(description="rank by rank, in program order")
    transfers: tuple[TracedTransfer, ...] = ()
    reductions: tuple[TracedReduction, ...] = ()

    @classmethod
    def of(cls, execution: ExecutionTrace, step: int, step_us: float) -> Self:
        """Make the record of an execution."""
        transfers, reductions = [], []
        for communication, start, end, exact in execution.communications:
            times = {"start_us": start, "end_us": end, "exact": exact}
            sizes = {"num_bytes": communication.num_bytes, "planned_us": communication.duration_us}
            if isinstance(communication, Transfer):
                ends = {
                    "value": str(communication.value),
                    "source": communication.source,
                    "target": communication.target,
                }
                transfers.append(TracedTransfer.model_validate({**ends, **sizes, **times}))
            else:
                whose = {
                    "kind": communication.kind,
                    "stage": communication.stage,
                    "number": communication.number,
                    "ranks": communication.ranks,
                }
                reductions.append(TracedReduction.model_validate({**whose, **sizes, **times}))
        return cls(
            step=step,
            step_us=round(step_us),
            ops=tuple(
                tuple(TracedOp(op=str(op), start_us=start, end_us=end) for op, start, end in spans)
                for spans in execution.ops
            ),
            transfers=tuple(transfers),
            reductions=tuple(reductions),
        )

    def execution(self) -> ExecutionTrace:
        """The execution that was recorded."""
        ops = [[OpSpan(Op.parse(t.op), t.start_us, t.end_us) for t in rank] for rank in self.ops]
        moved = [
            CommunicationSpan(
                Transfer(Value.parse(t.value), t.source, t.target, t.num_bytes, t.planned_us),
                t.start_us,
                t.end_us,
                t.exact,
            )
            for t in self.transfers
        ]
        summed = [
            CommunicationSpan(
                Collective(t.stage, t.ranks, t.num_bytes, t.planned_us, t.kind, t.number),
                t.start_us,
                t.end_us,
                t.exact,
            )
            for t in self.reductions
        ]
        return ExecutionTrace(ops, moved + summed)


class Trace(FileRecord):
    """A whole trace file. Version 2 distinguishes all-gathers and reduce-scatters from sums."""

    FORMAT: ClassVar[str] = "synth-trace"
    VERSION: ClassVar[int] = 2
    MOST_BYTES: ClassVar[int] = 1 << 31  # it has a record for each op of every traced step
    MADE_BY: ClassVar[tuple[str, ...]] = ("synth run --trace", "synth show --trace")

    source: Source
    plan: str
    profile: str
    schedule: str = Field(description="fingerprint of the schedule")
    processors: PositiveInt | None = Field(
        default=None, description="how many of them the ranks shared, where it ran"
    )
    times: PositiveFloat = Field(default=1.0, description="the plan's times were multiplied by")
    late: bool = Field(default=False, description="steps validated later: iterations overlap")
    steps: tuple[TracedStep, ...]

    @classmethod
    def of(
        cls,
        plan: Plan,
        source: Source,
        steps: Sequence[TracedStep],
        processors: int | None = None,
        times: float = 1.0,
        late: bool = False,
    ) -> Self:
        """Make the trace of some iterations of a plan."""
        return cls(
            source=source,
            plan=plan.name,
            profile=plan.profile_name,
            schedule=schedule_fingerprint(plan.schedule()),
            processors=processors,
            times=times,
            late=late,
            steps=tuple(steps),
        )

    def to_json(self) -> str:
        """Render the file's text, on one line, because it has a record per op."""
        return json.dumps(self.to_data(), separators=(",", ":")) + "\n"

    def check_of(self, plan: Plan) -> None:
        """Check that the trace is of this plan's schedule, with all its ranks and no others.

        Raises:
            Mismatch: the schedule is another one, or the ranks differ.
        """
        if self.schedule != schedule_fingerprint(plan.schedule()):
            raise Mismatch(
                f"the trace is of plan {self.plan!r} on {self.profile!r}, whose schedule is not "
                f"that of {plan.name!r} on {plan.profile_name!r}; give the plan that was run"
            )
        for step in self.steps:
            if len(step.ops) != plan.num_ranks:
                raise Mismatch(
                    f"step {step.step} of the trace has the ops of {len(step.ops)} ranks, the plan "
                    f"has {plan.num_ranks} ranks; trace the run again"
                )
            ends = {end for moved in step.transfers for end in (moved.source, moved.target)}
            ends.update(rank for summed in step.reductions for rank in summed.ranks)
            beyond = sorted(end for end in ends if end >= plan.num_ranks)
            if beyond:
                raise Mismatch(
                    f"step {step.step} of the trace has a transfer of rank {beyond[0]}, the plan "
                    f"has the ranks 0 to {plan.num_ranks - 1}; trace the run again"
                )
