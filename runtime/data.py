"""Training data: token ids from text or a file of ids, cut into random windows."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from synth.errors import SynthError

TEXT_SUFFIXES = (".py", ".txt", ".md", ".rst")
_SKIPPED_FOLDERS = {"site-packages", "__pycache__", "test", "tests"}


class TokenData:
    """A long sequence of token ids, from which each step draws its mini-batch.

    The draw depends on the seed and the step alone, so every rank draws the same windows and a
    resumed run sees what it would have seen.
    """

    def __init__(self, tokens: Tensor, sequence_length: int, seed: int) -> None:
        self._tokens = tokens
        self._length = sequence_length
        self._seed = seed

    def mini_batch(
        self, step: int, num_micro_batches: int, micro_batch_size: int
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Inputs and targets, each int64 [micro_batch_size, sequence_length], per micro-batch."""
        digest = hashlib.sha256(f"{self._seed}/{step}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
        last_start = len(self._tokens) - self._length - 1
        shape = (num_micro_batches, micro_batch_size)
        starts = torch.randint(last_start + 1, shape, generator=generator)
        for row in starts.tolist():
            windows = torch.stack([self._tokens[s : s + self._length + 1] for s in row]).long()
            yield windows[:, :-1].contiguous(), windows[:, 1:].contiguous()


def load_tokens(path: Path, sequence_length: int, vocabulary_size: int | None = None) -> Tensor:
    """Read a data source as one sequence of token ids.

    Args:
        path: a text file or a folder of them (bytes become ids 0 … 255), or a `.npy` file of
            integer ids (mapped into memory, not read).
        sequence_length: the sequence must be longer than this.
        vocabulary_size: ids must be below this, where it is known.

    Raises:
        SynthError: nothing there, not integers, ids that no vocabulary has, or too small.
    """
    if path.suffix == ".npy":
        tokens = _load_ids(path)
    else:
        tokens = torch.from_numpy(np.frombuffer(bytearray(_read_text(path)), dtype=np.uint8))
    _check_ids(path, tokens, vocabulary_size)
    if len(tokens) < sequence_length + 1:
        raise SynthError(
            f"data {path} has {len(tokens)} tokens; one sequence of this profile needs "
            f"{sequence_length + 1}; give more data, or profile with a smaller --seq-len"
        )
    return tokens


def _check_ids(path: Path, tokens: Tensor, vocabulary_size: int | None) -> None:
    """All ids, block by block, so that a mapped file is not read into memory at once."""
    size = 1 << 24
    for start in range(0, len(tokens), size):
        block = tokens[start : start + size]
        low, high = (int(x) for x in block.long().aminmax())
        if low < 0 or (vocabulary_size is not None and high >= vocabulary_size):
            known = f"0 to {vocabulary_size - 1}" if vocabulary_size else "0 and above"
            raise SynthError(
                f"data {path} has the token id {low if low < 0 else high}; the model's vocabulary "
                f"is {known}; take a model with a larger one, or other data"
            )


def _load_ids(path: Path) -> Tensor:
    try:
        ids = np.load(path, mmap_mode="c")
    except (OSError, ValueError) as error:
        raise SynthError(f"cannot read token ids from {path}: {error}") from None
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
    """The folder's own text files and those below it, sorted by path."""
    files = []
    for file in sorted(folder.rglob("*")):
        parts = file.relative_to(folder).parts
        if file.suffix in TEXT_SUFFIXES and file.is_file() and not _SKIPPED_FOLDERS & set(parts):
            files.append(file)
    if not files:
        listed = ", ".join(TEXT_SUFFIXES)
        raise SynthError(f"folder {folder} holds no text; looked for files ending in {listed}")
    return files
