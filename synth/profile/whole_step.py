"""A whole step of a few layers beside the sum of its parts: times, and peaks of memory."""

from collections.abc import Iterable, Iterator

from pydantic import Field

from synth.op_kinds import OpKind
from synth.profile.layer_profile import LayerProfile
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


class Turns(Record):
    """A whole step and its parts, measured in turns: the machine's changes hit both alike."""

    whole_us: TimeUs
    parts_us: TimeUs

    @property
    def difference(self) -> float:
        """The whole above the sum of its parts, as a share of the sum."""
        return _above(self.whole_us, self.parts_us)


class WholeStep(Record):
    """F, B and W of a few layers as one stage, measured by the executor.

    Attributes:
        layers: their names; they run from the inputs to the loss.
        parts_us: the sum of F, B and W of these layers, each measured alone.
        whole_us: from the beginning of F to the end of W of one micro-batch.
        peaks: with 1, 2 and 4 micro-batches held, as far as they fit on the device.
        turns: the same measured again in turns, where both differ by more than 3 %; None: they do
            not.
    """

    layers: tuple[PlainText, ...] = Field(min_length=1)
    parts_us: TimeUs
    whole_us: TimeUs
    peaks: tuple[HeldPeak, ...] = ()
    turns: Turns | None = None

    @property
    def time_difference(self) -> float:
        """The whole above the sum of its parts, as a share of the sum."""
        return _above(self.whole_us, self.parts_us)

    @property
    def is_time_off(self) -> bool:
        """True if the whole differs from its parts by more than 3 %."""
        return abs(self.time_difference) > TOLERANCE

    def doubts(self) -> Iterator[str]:
        """Yield a line for the time, and one for the peaks, if it is off by more than 3 %."""
        if self.is_time_off:
            off = f"the time of a whole step is {self.time_difference:+.1%} off its parts"
            yield off if self.turns is None else f"{off}, {self._meaning(self.turns)}"
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

    def _meaning(self, turns: Turns) -> str:
        """Say what a difference may mean, by that of the same measured in turns."""
        again = f"and {turns.difference:+.1%} when both are measured in turns"
        if abs(turns.difference) <= TOLERANCE:
            return f"{again}: the machine changed meanwhile, so profile again when it is quiet"
        if turns.difference > 0:
            return (
                f"{again}: caches that are hot where a layer follows itself, or noise; a run may "
                f"take longer than planned"
            )
        return (
            f"{again}: ops so short that a layer alone waits for the host, other values that take "
            f"other paths (experts), or noise; a run may take less than planned"
        )


def _above(whole_us: float, parts_us: float) -> float:
    return whole_us / parts_us - 1 if parts_us else 0.0


def sum_of_parts_us(layers: Iterable[LayerProfile]) -> float:
    """Return F + B + W of one micro-batch of all layers."""
    kinds = (OpKind.F, OpKind.B, OpKind.W)
    return sum(layer.time_us[kind].median_us for layer in layers for kind in kinds)
