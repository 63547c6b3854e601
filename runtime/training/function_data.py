"""Training data that a user's function makes, micro-batch by micro-batch."""

from collections.abc import Hashable, Iterator
from typing import Any

from synth.errors import SynthError

from ..batch import Batch
from ..input_function import InputFunction
from .epochs import EpochData, Epochs


class FunctionData(EpochData):
    """Micro-batches of a user's function, as `TokenData` has windows of tokens.

    They are counted in samples, of which each micro-batch has the same number. Without epochs an
    iterable that has ended begins anew.
    """

    def __init__(
        self,
        address: str,
        micro_batch_size: int,
        seed: int,
        epochs: int | None,
        sequence_length: int | None = None,
    ) -> None:
        """Import the function.

        Args:
            micro_batch_size: samples of each micro-batch, as profiled.
            seed: the seed of torch's generator while the function runs.
            epochs: number of passes through what it returns; None: without end.
            sequence_length: tokens of a sample, as profiled, where inputs are token ids; None: any.

        Raises:
            SynthError: there is no such function; or epochs are given, and its length is unknown.
        """
        self._function = InputFunction(address, seed)
        self._sequence_length = sequence_length
        self._signature: Hashable = None
        length = None if epochs is None else self._function.length()
        if epochs is not None and length is None:
            raise SynthError(
                f"--epochs {epochs} needs the number of micro-batches, and {address} returns "
                f"nothing that has a length; return a list or a DataLoader, or give --steps"
            )
        self._epochs = Epochs(epochs, (length or 0) * micro_batch_size)

    def fingerprint(self) -> None:
        """Nothing identifies what a function makes."""

    def check_enough(self, sequences_per_step: int) -> None:
        """Check that the data suffices for one step."""
        self._epochs.check_enough(sequences_per_step, self._function.address, "samples")

    def mini_batch(
        self, first: int, num_micro_batches: int, micro_batch_size: int
    ) -> Iterator[tuple[Any, Any]]:
        """Inputs and targets per micro-batch.

        Args:
            first: the number of the first sample to take.
            num_micro_batches: the number of pairs.
            micro_batch_size: samples in each.

        Raises:
            EndOfData: the last epoch holds fewer.
            SynthError: a micro-batch has another number of samples, or other shapes, than before.
        """
        end = first + num_micro_batches * micro_batch_size
        self._epochs.check_left(end)
        for number in range(first // micro_batch_size, end // micro_batch_size):
            batch = self._function.of(number)
            if batch.num_samples != micro_batch_size:
                raise SynthError(
                    f"{self._function.address} gave {batch.num_samples} samples as micro-batch "
                    f"{number}, {micro_batch_size} were profiled; give as many (a DataLoader does "
                    f"with drop_last=True), or profile again"
                )
            if batch.sequence_length > 1 and self._sequence_length not in (
                None,
                batch.sequence_length,
            ):
                raise SynthError(
                    f"{self._function.address} gave samples of {batch.sequence_length} tokens as "
                    f"micro-batch {number}, {self._sequence_length} were profiled, and times and "
                    f"memory are planned for those; give as many, or profile again"
                )
            signature = Batch([batch.inputs]).signature(0)
            if self._signature not in (None, signature):
                raise SynthError(
                    f"{self._function.address} gave inputs of other shapes or dtypes as "
                    f"micro-batch {number} than before; a plan is for one shape: pad or crop them "
                    f"to it"
                )
            self._signature = signature
            yield batch.inputs, batch.targets
