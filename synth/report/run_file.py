"""The file of `synth run -o` and `rehearse -o`: figures of a run, compared with its plan."""

from typing import Any, ClassVar

from pydantic import field_serializer

from synth.profile.measurement_conditions import Conditions
from synth.records.record import FileRecord
from synth.report.explain.run_against_plan import RunComparison


class RunFile(FileRecord):
    """The figures of a run.

    `conditions` are those of the profile. `losses` and `step_seconds` are by step, from
    `first_step` on; of the first two steps no time counts. `tokens_per_second` is that of all ranks
    in the median step, in samples if the model takes no token ids; None: no step was timed. `mfu`
    is the share of the devices' peak that the model's FLOPs take; None: they, or the peak, are not
    known. `devices` and `static_bytes` are by rank.

    `rehearsed`: the ranks ran one at a time, without losses, and the iteration was simulated with
    their times; `devices`, `static_bytes` and `reserved_bytes` (of CUDA's caching allocator) are
    then those of the rehearsed ranks, and None for others. `waited_us` are their waits for other
    ranks in a step whose arrivals were emulated as planned, medians over the steps; None:
    everything was there at once.
    """

    FORMAT: ClassVar[str] = "synth-run"
    VERSION: ClassVar[int] = 3
    MADE_BY: ClassVar[tuple[str, ...]] = ("synth run -o",)
    WRITES_NULL: ClassVar[bool] = True

    plan: str
    profile: str
    conditions: Conditions | None
    data_parallel: int
    rehearsed: bool = False
    devices: tuple[str | None, ...]
    first_step: int
    losses: tuple[float, ...]
    step_seconds: tuple[float, ...]
    tokens_per_second: float | None
    mfu: float | None = None
    static_bytes: tuple[int | None, ...]
    reserved_bytes: tuple[int | None, ...] | None = None
    waited_us: tuple[int | None, ...] | None = None
    comparison: RunComparison

    @field_serializer("conditions")
    def _known(self, conditions: Conditions | None) -> dict[str, Any] | None:
        """Only what was noted."""
        return None if conditions is None else conditions.model_dump(exclude_none=True)
