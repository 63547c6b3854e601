"""Passes through training data: how many sequences they hold, and where they end."""

from dataclasses import dataclass

from synth.errors import SynthError


class EndOfData(Exception):
    """Fewer sequences are left than a mini-batch needs."""


@dataclass(frozen=True)
class Epochs:
    """A number of passes through training data.

    Attributes:
        count: the number of passes; None: without end.
        sequences_per_epoch: the number of sequences, or of other samples, in each.
    """

    count: int | None
    sequences_per_epoch: int

    @property
    def num_sequences(self) -> int | None:
        """The number of sequences in all epochs together; None: unlimited."""
        return None if self.count is None else self.count * self.sequences_per_epoch

    def check_enough(self, sequences_per_step: int, data: str, unit: str) -> None:
        """Check that the data suffices for one step.

        Args:
            sequences_per_step: those of one optimizer step.
            data: the name of the data, for messages.
            unit: the word for its sequences, in the plural.
        """
        held = self.num_sequences
        if held is not None and held < sequences_per_step:
            raise SynthError(
                f"{self.count} epoch(s) of {data} hold {held} {unit}, one optimizer step takes "
                f"{sequences_per_step}; give more data or --epochs"
            )

    def check_left(self, end: int) -> None:
        """Check that the sequences before the number `end` are there.

        Raises:
            EndOfData: the last epoch holds fewer.
        """
        if self.num_sequences is not None and end > self.num_sequences:
            raise EndOfData


class EpochData:
    """Training data that is gone through some times; the parts that all kinds of it share."""

    _epochs: Epochs

    @property
    def sequences_per_epoch(self) -> int:
        """The number of sequences, or of other samples, in the data; 0 if it is unknown."""
        return self._epochs.sequences_per_epoch

    @property
    def num_sequences(self) -> int | None:
        """The number of them in all epochs together; None: unlimited."""
        return self._epochs.num_sequences
