"""The options of an emulated run; everything else is in the plan.

`synth emulate` parses its command line into this record, and ranks are emulated by it.
"""

from typing import Annotated, Literal, Self

from pydantic import Field

from synth.records.command_option import CommandOption
from synth.records.record import Record
from synth.run_options.train_options import LookAheadCount, Timeout


class Disturbance(Record):
    """Deviations of an emulated run from the times of its plan.

    Attributes:
        jitter: the standard deviation of each op's and each transfer's time, as a share of it.
        slow_rank: the rank whose ops take longer; None: all are alike.
        slow_rank_factor: the factor of its times.
        slow_link: the two ranks between which transfers take longer, in both directions.
        slow_link_factor: the factor of their times.
    """

    jitter: float = 0.0
    slow_rank: int | None = None
    slow_rank_factor: float = 1.0
    slow_link: tuple[int, int] | None = None
    slow_link_factor: float = 1.0
    seed: int = 0


class EmulationOptions(Record):
    """The options of an emulated run; those that training has too have its names."""

    emulated: Literal[True] = True
    steps: Annotated[
        int, Field(ge=3), CommandOption("Iterations, the first two of which are warm-up.")
    ] = 8
    post_validation: Annotated[
        bool,
        CommandOption(
            "Post-validation: ranks do not synchronize at STEP, so iterations take the period."
        ),
    ] = False
    look_ahead: LookAheadCount = 0
    timeout_s: Timeout = 300.0
    patience_s: float = 120.0
    trace_every: int = 1
    caps_bytes: tuple[int, ...] | None = None
    """The memory limits that look-ahead keeps; None: each rank's planned peak."""
    disturbance: Disturbance = Disturbance()
    device: Literal["cpu"] = "cpu"
    restarts: Literal[0] = 0

    def resolved(self) -> Self:
        """The same for a process in another folder."""
        return self
