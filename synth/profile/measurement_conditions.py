"""The conditions under which a profile was measured: the load of the machine, and how far its
samples spread."""

from collections.abc import Iterable
from typing import Annotated

from pydantic import Field

from synth.op_kinds import OpKind
from synth.profile.layer_profile import LayerProfile
from synth.records.record import Record
from synth.system.messages import warn

# Load of others per processor. Above it more than half of the processors are taken: the measured
# thread then shares caches, memory bandwidth and clock, even where it has a processor of its own.
BUSY_LOAD = 0.5

# Share of the measured time without a processor. A thread with one of its own loses next to
# nothing, so a twentieth means that others were scheduled in its place.
BUSY_WAITING_SHARE = 0.05

# p90 − p10 as a share of the median; the shipped CPU profile has 0.14. Of normal samples that are
# this far apart, the median of 20 has a standard error of about 0.03, several times the gap of
# 0.5 % to which `synth solve` searches.
WIDE_SPREAD = 0.25

_SPREAD_OF = (OpKind.F, OpKind.B, OpKind.W, OpKind.BW)

_Amount = Annotated[float, Field(ge=0, le=1e6)]


class Conditions(Record):
    """The state of the machine during a measurement; None stands for unknown values.

    - `load_start`: 1-minute load average per processor before the measurement, on CPU;
    - `load_end`: the same at its end, less the load of the measurement itself;
    - `waiting_share`: share of the measured time in which the thread had no processor;
    - `other_processes`: on the CUDA device, besides the one that measured;
    - `spread`: p90 − p10 as a share of the median, over all of F, B, W and BW.
    """

    load_start: _Amount | None = None
    load_end: _Amount | None = None
    waiting_share: float | None = Field(default=None, ge=0, le=1)
    other_processes: int | None = Field(default=None, ge=0, le=1 << 22)
    spread: _Amount | None = None

    def warning(self, profile: str) -> str | None:
        """Return one line on why the times are doubtful, and what to do; None if they are not.

        Args:
            profile: the name of the profile in the line.
        """
        signs = list(self._signs_of_others())
        is_wide = (self.spread or 0) > WIDE_SPREAD
        if not signs and not is_wide:
            return None
        where = "on a busy machine" if signs else "with samples far apart"
        if is_wide:
            signs.append(f"p10 to p90 span {100 * (self.spread or 0):.0f} % of the median")
        return (
            f"warning: {profile} was measured {where} ({', '.join(signs)}), so its times may be "
            f"off; profile again on a quiet machine"
        )

    def _signs_of_others(self) -> Iterable[str]:
        """Describe the signs that others used the machine or the device."""
        load = max(self.load_start or 0, self.load_end or 0)
        if load > BUSY_LOAD:
            yield f"load {load:.1f} per processor"
        if (self.waiting_share or 0) > BUSY_WAITING_SHARE:
            yield f"{100 * (self.waiting_share or 0):.0f} % of the time without a processor"
        if self.other_processes:
            plural = "es" if self.other_processes > 1 else ""
            yield f"{self.other_processes} other process{plural} on the device"


def spread_of(layers: Iterable[LayerProfile]) -> float:
    """p90 − p10 of all ops together as a share of their medians, so that long ops count more."""
    timings = [layer.time_us[kind] for layer in layers for kind in _SPREAD_OF]
    total_us = sum(timing.median_us for timing in timings)
    apart_us = sum(timing.p90_us - timing.p10_us for timing in timings)
    return round(apart_us / total_us, 4) if total_us else 0.0


def warn_of(conditions: Conditions | None, profile: str) -> None:
    """Warn if times were measured under doubtful conditions."""
    warning = None if conditions is None else conditions.warning(profile)
    if warning is not None:
        warn(warning)
