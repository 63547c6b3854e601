"""A whole step of a few layers beside the sum of its parts: times, and peaks of memory."""

from collections.abc import Iterable, Iterator

from pydantic import Field

from synth.op_kinds import OpKind
from synth.profile.layer_profile import LayerProfile
from synth.records.field_types import PlainText, TimeUs, Whole
from synth.records.record import Record

# The largest difference, as a share of the sum of the parts, that is not remarked on.
TOLERANCE = 0.03

# The mean time of a layer and the difference of memory below which shares say nothing.
_SHORT_US = 50.0
_SMALL_BYTES = 1_000_000

# The smallest part of the first difference that has the same cause when it is seen again.
_SEEN_AGAIN = 0.5


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

    @property
    def is_off(self) -> bool:
        """True if both differ by more than 3 % and by a megabyte at least."""
        difference_bytes = abs(self.measured_bytes - self.planned_bytes)
        return abs(self.difference) > TOLERANCE and difference_bytes >= _SMALL_BYTES


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
        turns: the same measured again in turns, where `is_time_off`; None: it is not.
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
        """True if the whole differs by more than 3 % from parts of 50 µs at least in the mean."""
        is_long = self.parts_us >= _SHORT_US * len(self.layers)
        return is_long and abs(self.time_difference) > TOLERANCE

    def doubts(self) -> Iterator[str]:
        """Yield a line for the time if it is off, and one for the peaks."""
        if self.is_time_off:
            off = f"the time of a whole step is {self.time_difference:+.1%} off its parts"
            yield off if self.turns is None else f"{off}, {self._meaning(self.turns)}"
        off_peaks = [peak for peak in self.peaks if peak.is_off]
        if off_peaks:
            worst = max(off_peaks, key=lambda peak: abs(peak.difference))
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
        is_seen_again = turns.difference / self.time_difference >= _SEEN_AGAIN
        if abs(turns.difference) <= TOLERANCE or not is_seen_again:
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
