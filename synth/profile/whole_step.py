"""A whole step of a few layers beside the sum of its parts: times, and peaks of memory."""

from collections.abc import Iterable, Iterator

from pydantic import Field

from synth.op_kinds import OpKind
from synth.profile.layer_profile import LayerProfile
from synth.profile.measurement_conditions import Conditions
from synth.records.field_types import PlainText, TimeUs, Whole
from synth.records.record import Record

# The largest difference, as a share of the sum of the parts, that is not remarked on.
TOLERANCE = 0.03


class HeldPeak(Record):
    """The peak of memory while so many micro-batches are held, as planned and as measured.

    Parameters, buffers and gradients count; the state of the optimizer does not.
    """

    micro_batches: Whole = Field(gt=0)
    planned_bytes: Whole = Field(gt=0)
    measured_bytes: Whole = Field(ge=0)

    @property
    def difference(self) -> float:
        """The measured peak above the planned one, as a share of the planned one."""
        return self.measured_bytes / self.planned_bytes - 1


class WholeStep(Record):
    """F, B and W of a few layers as one stage, measured by the executor.

    Attributes:
        layers: their names; they run from the inputs to the loss.
        parts_us: the sum of F, B and W of these layers, each measured alone.
        whole_us: from the beginning of F to the end of W of one micro-batch.
        peaks: with 1, 2 and 4 micro-batches held, as far as they fit on the device.
    """

    layers: tuple[PlainText, ...] = Field(min_length=1)
    parts_us: TimeUs
    whole_us: TimeUs
    peaks: tuple[HeldPeak, ...] = ()

    @property
    def time_difference(self) -> float:
        """The whole above the sum of its parts, as a share of the sum."""
        return self.whole_us / self.parts_us - 1 if self.parts_us else 0.0

    def doubts(self, conditions: Conditions | None) -> Iterator[str]:
        """Yield a line for the time, and one for the peaks, if it is off by more than 3 %.

        Args:
            conditions: of the measurement; None: not known.
        """
        if abs(self.time_difference) > TOLERANCE:
            is_doubtful = conditions is not None and conditions.warning("it") is not None
            causes = "the machine was not quiet, see the warning" if is_doubtful else self._causes
            yield f"the time of a whole step is {self.time_difference:+.1%} off its parts: {causes}"
        worst = max(self.peaks, key=lambda peak: abs(peak.difference), default=None)
        if worst is not None and abs(worst.difference) > TOLERANCE:
            meaning = (
                "plans take too little memory, so leave the difference with --mem-reserve"
                if worst.difference > 0
                else "plans ask for more memory than runs take"
            )
            yield (
                f"the peak with {worst.micro_batches} held is {worst.difference:+.1%} off the "
                f"plan: {meaning}"
            )

    @property
    def _causes(self) -> str:
        if self.time_difference > 0:
            return (
                "caches that are hot where a layer is repeated alone, ops so short that the host "
                "is slower than they are, or noise; a run may take as much longer"
            )
        return (
            "layers measured alone may wait for the host where a chain of them does not, other "
            "values may take other paths (experts), or noise; a run may take as much less"
        )


def sum_of_parts_us(layers: Iterable[LayerProfile]) -> float:
    """Return F + B + W of one micro-batch of all layers."""
    kinds = (OpKind.F, OpKind.B, OpKind.W)
    return sum(layer.time_us[kind].median_us for layer in layers for kind in kinds)
