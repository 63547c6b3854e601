"""Training data: token ids from text or a file of ids, cut into random windows."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from synth.errors import SynthError

from ..checkpoint import DataFingerprint
from ..checkpoint.fingerprint import fingerprint
from ..seeds import derive_seed
from .epochs import EpochData, Epochs

TEXT_SUFFIXES = (".py", ".txt", ".md", ".rst")
_SKIPPED_FOLDERS = {"site-packages", "__pycache__", "test", "tests"}


class TokenData(EpochData):
    """A long sequence of token ids, divided into numbered training sequences.

    The n-th sequence depends on the seed and on n alone. Therefore every rank draws the same
    sequences, and a resumed run continues as it would have, even with other mini-batch sizes.
    """

    def __init__(
        self, tokens: Tensor, sequence_length: int, seed: int, epochs: int | None = None
    ) -> None:
        """Prepare to draw.

        Args:
            tokens: all of them, more than `sequence_length`.
            sequence_length: the tokens of each training sequence.
            seed: the seed of the sampling.
            epochs: the number of passes through the data, each in a new random order; None: sample
                sequences at random, with replacement, without end.
        """
        self._tokens = tokens
        self._length = sequence_length
        self._seed = seed
        self._epochs = Epochs(epochs, (len(tokens) - 1) // sequence_length)
        self._order: tuple[int, np.ndarray] | None = None

    def fingerprint(self) -> DataFingerprint:
        """Return the fingerprint of the data."""
        return fingerprint(self._tokens)

    def check_enough(self, sequences_per_step: int) -> None:
        """Check that the data suffices for one step."""
        self._epochs.check_enough(sequences_per_step, "the data", "sequences")

    def mini_batch(
        self, first: int, num_micro_batches: int, micro_batch_size: int
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Inputs and targets, each int64 [micro_batch_size, sequence_length], per micro-batch.

        Args:
            first: the number of the first sequence to take.
            num_micro_batches: the number of pairs.
            micro_batch_size: sequences in each.

        Raises:
            EndOfData: the last epoch holds fewer.
        """
        end = first + num_micro_batches * micro_batch_size
        self._epochs.check_left(end)
        for start in range(first, end, micro_batch_size):
            places = [self._place(n) for n in range(start, start + micro_batch_size)]
            windows = torch.stack([self._tokens[p : p + self._length + 1] for p in places]).long()
            yield windows[:, :-1].contiguous(), windows[:, 1:].contiguous()

    def _place(self, number: int) -> int:
        """The start of a sequence in the tokens."""
        if self._epochs.count is None:
            return derive_seed(self._seed, number) % (len(self._tokens) - self._length)
        epoch, place = divmod(number, self.sequences_per_epoch)
        if self._order is None or self._order[0] != epoch:
            generator = np.random.default_rng([self._seed, epoch])
            self._order = epoch, generator.permutation(self.sequences_per_epoch)
        return int(self._order[1][place]) * self._length


def load_tokens(path: Path, sequence_length: int) -> Tensor:
    """Read a data source as one sequence of token ids.

    Args:
        path: a text file or a folder of them (bytes become ids 0 … 255; folders of tests or
            installed packages are left out), or a `.npy` file of integer ids, which is mapped into
            memory, so that only the used parts are read.
        sequence_length: the sequence must be longer than this.

    Returns:
        The ids, of the file's integer dtype: [tokens].

    Raises:
        SynthError: the source does not exist, is not made of integers, or is too small.
    """
    _check_every_rank_can_read(path)
    if path.suffix == ".npy":
        tokens = _load_ids(path)
    else:
        tokens = torch.from_numpy(np.frombuffer(bytearray(_read_text(path)), dtype=np.uint8))
    if len(tokens) < sequence_length + 1:
        raise SynthError(
            f"data {path} has {len(tokens)} tokens; one sequence of this profile needs "
            f"{sequence_length + 1}; give more data, or profile with a smaller --seq-len"
        )
    return tokens


def check_ids(path: Path, tokens: Tensor, vocabulary_size: int | None) -> None:
    """Check all ids once, block by block, unless their dtype can only hold valid ones.

    Args:
        path: the source of the ids, for messages.
        tokens: the ids: [tokens].
        vocabulary_size: the exclusive upper bound of ids, if known.

    Raises:
        SynthError: an id is negative or not in the vocabulary.
    """
    held = torch.iinfo(tokens.dtype)
    if held.min >= 0 and (vocabulary_size is None or held.max < vocabulary_size):
        return
    size = 1 << 24
    for start in range(0, len(tokens), size):
        low, high = _extremes(tokens[start : start + size])
        if low < 0 or (vocabulary_size is not None and high >= vocabulary_size):
            known = f"0 to {vocabulary_size - 1}" if vocabulary_size else "0 and above"
            raise SynthError(
                f"data {path} has the token id {low if low < 0 else high}; the model's vocabulary "
                f"is {known}; take a model with a larger one, or other data"
            )


def _extremes(block: Tensor) -> tuple[int, int]:
    low, high = block.long().aminmax()
    return int(low), int(high)


def _check_every_rank_can_read(path: Path) -> None:
    try:
        is_stream = path.exists() and not path.is_file() and not path.is_dir()
    except OSError as error:
        raise SynthError(f"cannot read data {path}: {error.strerror or error}") from None
    if is_stream:
        raise SynthError(
            f"data {path} is a pipe or a device, which cannot be read by every rank; "
            f"give a file or a folder"
        )


def _load_ids(path: Path) -> Tensor:
    try:
        ids = np.load(path, mmap_mode="c")
    except (OSError, ValueError) as error:
        raise SynthError(f"cannot read token ids from {path}: {error}") from None
    if not isinstance(ids, np.ndarray):
        raise SynthError(f"{path} is an archive of arrays; needed: one 1-D array of integers")
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise SynthError(
            f"{path} holds {ids.dtype} of shape {ids.shape}; needed: a 1-D array of integers"
        )
    try:
        return torch.from_numpy(ids)
    except (TypeError, ValueError) as error:
        raise SynthError(f"{path}: {error}; save ids as uint8, uint16 or int64") from None


def _read_text(path: Path) -> bytes:
    try:
        if path.is_dir():
            return b"\n".join(file.read_bytes() for file in _text_files(path))
        return path.read_bytes()
    except OSError as error:
        raise SynthError(f"cannot read data {path}: {error.strerror or error}") from None


def _text_files(folder: Path) -> list[Path]:
    """The text files in the folder and its sub-folders, sorted by path."""
    files: list[Path] = []
    for root, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in _SKIPPED_FOLDERS]
        files += filter(_is_text, (Path(root, name) for name in names))
    if not files:
        listed = ", ".join(TEXT_SUFFIXES)
        skipped = list(filter(_is_text, folder.rglob("*")))
        parts = {part for file in skipped for part in file.relative_to(folder).parts}
        named = ", ".join(sorted(_SKIPPED_FOLDERS & parts))
        left_out = (
            f"; left out: {len(skipped)} in folders named {named}; give such a folder itself"
            if skipped
            else ""
        )
        raise SynthError(
            f"folder {folder} holds no text; looked for files ending in {listed}{left_out}"
        )
    return sorted(files)


def _is_text(path: Path) -> bool:
    return path.suffix in TEXT_SUFFIXES and path.is_file()
