"""Cost of tracing: host time per op and per end of a transfer, with recording on and off.

    python -m benchmarks.trace_cost

On CUDA a moment is an event; its cost on the device is not measured here.
"""

import statistics
import time
from collections.abc import Callable

import torch

from synth.op_kinds import OpKind
from synth.report.text.tables import table
from synth.runtime.execution.base.clock import OpClock
from synth.schedule.lowering.lower import Transfer
from synth.schedule.ops import Op, Value, ValueKind

_ROUNDS, _CALLS = 7, 2000


def main() -> None:
    """Print microseconds per call, medians of rounds that alternate."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    clocks = {"on": OpClock(device), "off": OpClock(device, recording=False)}
    op = Op(OpKind.F, 0)
    transfer = Transfer(Value(ValueKind.ACT, 0, 0), 0, 1, 8, 1)

    def measure(clock: OpClock) -> None:
        with clock.measure(op):
            pass

    def move(clock: OpClock) -> None:
        clock.ready(transfer)
        if clock.recording:  # as the traced channels do
            with clock.wait(transfer):
                pass

    rows = []
    for name, call in (("op", measure), ("end of a transfer", move)):
        times = {on: [_per_call_us(call, clock)] for on, clock in clocks.items()}
        for _ in range(_ROUNDS):
            for on, clock in clocks.items():
                times[on].append(_per_call_us(call, clock))
        rows.append((name, *(f"{statistics.median(times[on]):.2f}" for on in clocks)))
    print(device)
    print(table(("traced", "on\nµs", "off\nµs"), rows))


def _per_call_us(call: Callable[[OpClock], None], clock: OpClock) -> float:
    clock.begin()
    start = time.perf_counter_ns()
    for _ in range(_CALLS):
        call(clock)
    return (time.perf_counter_ns() - start) / 1000 / _CALLS


if __name__ == "__main__":
    main()
