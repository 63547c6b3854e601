"""The pace of absent ranks, emulated: what they would send arrives when the plan says.

    plan        |0 ... F of rank 0 ...|-- transfer --|
    this rank   |0 ..... its ops ..... wait ~ sleep ~| F ...

The host sleeps where the rank waits, so an op runs after its input has come, on any device. On CUDA
a real receive makes the stream wait and not the host, which meanwhile launches what follows; here
the launches come after the arrival, and add to the step what they would have hidden.
"""

from synth.costs.costs import HOST
from synth.schedule.lowering.lower import Lowered, Transfer
from synth.schedule.measured.execution_trace import planned_execution
from synth.schedule.simulate import simulate

from ..emulation.emulated_clock import EmulatedClock, after
from ..execution.base.clock import OpClock


class PlannedArrivals:
    """The planned ends of the transfers to one rank, counted from the beginning of its program."""

    def __init__(self, lowered: Lowered, rank: int, clock: OpClock, *, late: bool) -> None:
        """Simulate the plan.

        Args:
            rank: the receiver.
            clock: tells when the rank began its program.
            late: steps are validated later, so that iterations overlap.
        """
        timeline = simulate(lowered)
        begin_us = timeline.begin_us(rank, late=late)
        self._due_us = {
            span.communication: span.end_us - begin_us
            for span in planned_execution(timeline).communications
            if isinstance(span.communication, Transfer)
            and span.communication.target == rank
            and span.communication.source != HOST
        }
        self._clock, self._device = clock, EmulatedClock()

    def wait_for(self, transfer: Transfer) -> None:
        """Sleep until a transfer to the rank has ended by the plan."""
        self._device.begin()  # the moment is of the host's clock, however late this thread was
        self._device.sleep_until(after(self._clock.zero_ns, self._due_us[transfer]))
