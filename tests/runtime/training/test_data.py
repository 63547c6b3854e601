"""Training data: bytes or ids, the same draw on every rank, and clear refusals."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from synth.errors import SynthError
from synth.families import generate
from synth.profile import Profile
from synth.profiles import find
from synth.runtime.batch import Batch
from synth.runtime.training.batches import Batches, MiniBatch
from synth.runtime.training.data import TokenData, check_ids, load_tokens
from synth.runtime.training.epochs import EndOfData
from synth.schedule.files.plan_file import Plan


def test_text_files_of_a_folder_become_bytes_in_the_order_of_their_paths(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("world")
    (tmp_path / "a.py").write_text("hello")
    (tmp_path / "picture.png").write_bytes(b"\x00")
    assert bytes(load_tokens(tmp_path, 3).tolist()) == b"hello\nworld"


def test_targets_are_the_inputs_moved_by_one_and_a_sequence_is_the_same_again() -> None:
    data = TokenData(torch.arange(100), sequence_length=8, seed=1)
    first, again, other = ([pair for pair in data.mini_batch(n, 3, 2)] for n in (30, 30, 36))
    for (x, y), (x_again, _) in zip(first, again, strict=True):
        assert x.shape == y.shape == (2, 8)
        assert torch.equal(y, x + 1)
        assert torch.equal(x, x_again)
    assert not all(torch.equal(a, b) for (a, _), (b, _) in zip(first, other, strict=True))


@pytest.mark.parametrize("epochs", [None, 3])
def test_the_sequences_do_not_depend_on_how_they_are_cut_into_batches(epochs: int | None) -> None:
    data = TokenData(torch.arange(200), sequence_length=8, seed=1, epochs=epochs)
    whole = torch.cat([x for x, _ in data.mini_batch(6, 6, 2)])
    parts = [torch.cat([x for x, _ in data.mini_batch(n, 1, 4)]) for n in (6, 10, 14)]
    assert torch.equal(whole, torch.cat(parts))


def test_an_epoch_holds_every_sequence_once_and_the_next_another_order() -> None:
    data = TokenData(torch.arange(81), sequence_length=8, seed=1, epochs=2)
    first, second = ([int(x[0, 0]) for x, _ in data.mini_batch(start, 10, 1)] for start in (0, 10))
    assert sorted(first) == sorted(second) == list(range(0, 80, 8))
    assert first != second


def test_after_the_last_epoch_the_data_ends() -> None:
    data = TokenData(torch.arange(81), sequence_length=8, seed=1, epochs=2)
    assert len(list(data.mini_batch(16, 2, 2))) == 2
    with pytest.raises(EndOfData):
        list(data.mini_batch(17, 2, 2))


def test_a_rank_between_the_first_and_the_last_stage_draws_nothing() -> None:
    class Drawn(TokenData):
        def mini_batch(self, *arguments: int) -> Iterator[tuple[Tensor, Tensor]]:
            raise AssertionError("something was drawn")

    plan = Plan.of(Profile.load(find("zb-1.5b-p8-m24")), [8] * 3, generate("1f1b", 3, 4))
    batches = Batches(
        Drawn(torch.arange(81), sequence_length=8, seed=1),
        plan,
        per_step=2,
        inputs=False,
        targets=False,
        device=torch.device("cpu"),
    )
    assert batches.take() == [MiniBatch(0, Batch()), MiniBatch(24, Batch())]


@pytest.mark.parametrize("num_pipelines", [1, 2, 3])
def test_pipelines_side_by_side_share_the_sequences_of_a_step(num_pipelines: int) -> None:
    plan = Plan.of(Profile.load(find("zb-1.5b-p8-m24")), [8] * 3, generate("1f1b", 3, 4))
    data = TokenData(torch.arange(1000), sequence_length=8, seed=1)
    taken = []
    for pipeline in range(num_pipelines):
        batches = Batches(
            data,
            plan,
            per_step=2,
            inputs=True,
            targets=False,
            device=torch.device("cpu"),
            pipeline=pipeline,
            num_pipelines=num_pipelines,
        )
        assert batches.sequences_per_step == 2 * 4 * 6 * num_pipelines
        steps = [batches.take() for _ in range(2)]
        taken += [first for step in steps for first, _ in step]
        first, batch = steps[1][1]
        wanted = [x for x, _ in data.mini_batch(first, 4, 6)]
        assert batch.inputs is not None
        assert all(torch.equal(x, y) for x, y in zip(batch.inputs, wanted, strict=True))
    assert sorted(taken) == [24 * n for n in range(4 * num_pipelines)]


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
        check_ids(path, load_tokens(path, 3), vocabulary_size=100)


def test_ids_that_can_only_be_known_ones_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("synth.runtime.training.data._extremes", None)
    for dtype, vocabulary_size in ((np.uint8, 256), (np.uint16, 1 << 16), (np.uint16, None)):
        path = tmp_path / "ids.npy"
        np.save(path, np.ones(9, dtype=dtype))
        check_ids(path, load_tokens(path, 3), vocabulary_size)


def test_only_skipped_text_is_refused_by_naming_what_was_skipped(tmp_path: Path) -> None:
    for folder in ("tests", "lib/site-packages"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "a.py").write_text("hello")
    with pytest.raises(SynthError, match="left out: 2 in folders named site-packages, tests;"):
        load_tokens(tmp_path, 3)
    (tmp_path / "b.txt").write_text("world")
    assert bytes(load_tokens(tmp_path, 3).tolist()) == b"world"


def test_an_empty_file_has_no_tokens(tmp_path: Path) -> None:
    path = tmp_path / "empty.txt"
    path.write_text("")
    with pytest.raises(SynthError, match="has 0 tokens"):
        load_tokens(path, 3)


def test_an_archive_of_arrays_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ids.npy"
    with path.open("wb") as file:
        np.savez(file, ids=np.arange(9))
    with pytest.raises(SynthError, match="is an archive of arrays; needed: one 1-D array"):
        load_tokens(path, 4)
