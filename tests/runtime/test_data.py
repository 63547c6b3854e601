"""Training data: bytes or ids, the same draw on every rank, and clear refusals."""

from pathlib import Path

import numpy as np
import pytest
import torch

from synth.errors import SynthError
from synth.runtime.data import TokenData, load_tokens


def test_text_files_of_a_folder_become_bytes_in_the_order_of_their_paths(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("world")
    (tmp_path / "a.py").write_text("hello")
    (tmp_path / "picture.png").write_bytes(b"\x00")
    assert bytes(load_tokens(tmp_path, 3).tolist()) == b"hello\nworld"


def test_targets_are_the_inputs_moved_by_one_and_a_step_draws_the_same_again() -> None:
    data = TokenData(torch.arange(100), sequence_length=8, seed=1)
    first, again, other = ([pair for pair in data.mini_batch(step, 3, 2)] for step in (5, 5, 6))
    for (x, y), (x_again, _) in zip(first, again, strict=True):
        assert x.shape == y.shape == (2, 8)
        assert torch.equal(y, x + 1)
        assert torch.equal(x, x_again)
    assert not all(torch.equal(a, b) for (a, _), (b, _) in zip(first, other, strict=True))


def test_the_shortest_data_that_is_enough_gives_its_only_window() -> None:
    [(x, y)] = TokenData(torch.arange(9), sequence_length=8, seed=0).mini_batch(0, 1, 1)
    assert x.tolist() == [list(range(8))]
    assert y.tolist() == [list(range(1, 9))]


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (np.array([1, 2, 100, 3]), r"token id 100; the model's vocabulary is 0 to 99"),
        (np.array([1, -2, 3, 4]), r"token id -2"),
        (np.array([0.5, 1.0]), r"needed: a 1-D array of integers"),
        (np.zeros((2, 2), dtype=np.int64), r"shape \(2, 2\)"),
        (np.array([1, 2, 3, 4], dtype=">i4"), r"save ids as"),
        (np.array([1, 2]), r"has 2 tokens; one sequence of this profile needs 4"),
    ],
    ids=["too high", "negative", "no integers", "two dimensions", "byte order", "too few"],
)
def test_ids_that_cannot_be_trained_on_are_refused(
    tmp_path: Path, ids: np.ndarray, message: str
) -> None:
    path = tmp_path / "ids.npy"
    np.save(path, ids)
    with pytest.raises(SynthError, match=message):
        load_tokens(path, 3, vocabulary_size=100)


def test_an_empty_file_has_no_tokens(tmp_path: Path) -> None:
    path = tmp_path / "empty.txt"
    path.write_text("")
    with pytest.raises(SynthError, match="has 0 tokens"):
        load_tokens(path, 3)
