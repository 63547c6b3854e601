"""Micro-batches that a user's function makes: by number, or one after another."""

import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from synth.errors import SynthError
from synth.runtime.input_function import InputFunction, MicroBatch
from synth.runtime.models.user_function import import_function
from synth.runtime.training.epochs import EndOfData
from synth.runtime.training.function_data import FunctionData

FUNCTIONS = """
import torch
from torch.utils.data import DataLoader, TensorDataset
def numbered(number):
    return torch.full((2, 3), float(number)), torch.tensor([number, number])
def drawn(number):
    return torch.randn(2, 3), torch.zeros(2)
def yielding():
    for number in range(3):
        yield torch.full((2, 3), float(number)), torch.randn(2)
def pair():
    calls.append(1)
    return torch.randn(2, 3), torch.zeros(2)
calls = []
def loader():
    x = torch.arange(8.0)[:, None]
    return DataLoader(TensorDataset(x, x), batch_size=2, shuffle=True)
def collated():
    x = torch.arange(8.0)[:, None]
    return next(iter(DataLoader(TensorDataset(x, -x), batch_size=2)))
def collated_pairs():
    x = torch.arange(4.0)[:, None]
    return next(iter(DataLoader([((a, a + 10), (a + 20, a + 30)) for a in x], batch_size=2)))
def listed():
    return [(torch.full((2, 3), float(number)), torch.zeros(2)) for number in range(3)]
def tree(number):
    return {"pixels": torch.zeros(4, 3, 2, 2), "flag": True}, {"label": torch.zeros(4)}
def ids(number):
    return (torch.zeros(2, 7, dtype=torch.int64), torch.ones(2, 7)), torch.zeros(2)
def tokens(number):
    return torch.zeros(2, 7, dtype=torch.int64), torch.zeros(2, 7)
def growing(number):
    return torch.zeros(2, 3 + number), torch.zeros(2)
def two(a, b): ...
def one(): return torch.zeros(3)
def lone(number): return torch.zeros(3)
def empty():
    yield from ()
def triples(): yield 1, 2, 3
def numbers(number): return 1, 2
def aimless(number): return torch.zeros(2), None
def failing(number): raise KeyError("pixels")
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "functions.py"
    path.write_text(FUNCTIONS)
    return path


@pytest.mark.parametrize("name", ["numbered", "drawn", "yielding", "pair", "loader", "listed"])
def test_every_rank_gets_the_same_micro_batches_in_any_order_of_asking(
    file: Path, name: str
) -> None:
    ahead, again = (InputFunction(f"{file}:{name}", seed=5) for _ in range(2))
    in_order = [ahead.of(number) for number in range(8)]
    for number in (6, 2, 3):
        for ours, theirs in zip(again.of(number), in_order[number], strict=True):
            assert torch.equal(ours, theirs)


def test_a_pair_is_made_once_for_each_micro_batch(file: Path) -> None:
    function = InputFunction(f"{file}:pair", seed=5)
    drawn = [function.of(number).inputs[0, 0].item() for number in (0, 1, 0)]
    calls = import_function(f"{file}:pair").__globals__["calls"]
    assert len(calls) == 3
    assert drawn[0] == drawn[2] != drawn[1]


def test_what_is_drawn_depends_on_seed_and_number_and_leaves_torchs_generator(file: Path) -> None:
    before = torch.get_rng_state()
    drawn = [
        InputFunction(f"{file}:drawn", seed).of(number) for seed in (1, 2) for number in (0, 1)
    ]
    assert len({batch.inputs[0, 0].item() for batch in drawn}) == 4
    assert torch.equal(torch.get_rng_state(), before)


def test_an_iterable_that_ends_begins_anew(file: Path) -> None:
    function = InputFunction(f"{file}:yielding")
    assert [function.of(number).inputs[0, 0].item() for number in range(7)] == [0, 1, 2, 0, 1, 2, 0]


def test_samples_and_lengths_are_those_of_the_first_tensor(file: Path) -> None:
    found = [InputFunction(f"{file}:{name}").of(0) for name in ("tree", "ids", "numbered")]
    assert [(b.num_samples, b.sequence_length) for b in found] == [(4, 1), (2, 7), (2, 1)]
    assert MicroBatch(torch.tensor(1.0), 0).num_samples == 1


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("two", "needs the arguments a, b; it may need one"),
        ("one", "returned a Tensor; it needs to return a pair"),
        ("lone", "gave a Tensor as a micro-batch; needed: a pair"),
        ("empty", "yields nothing"),
        ("triples", "gave a tuple of 3 as a micro-batch"),
        ("numbers", "inputs without a tensor"),
        ("aimless", "gave no targets"),
        ("failing", r"failing failed: KeyError: 'pixels' .*functions.py, line \d+, failing\)"),
        ("nothing", "has no function 'nothing'"),
    ],
)
def test_a_users_mistake_is_named(file: Path, name: str, message: str) -> None:
    with pytest.raises(SynthError, match=message):
        InputFunction(f"{file}:{name}").of(0)


def test_an_address_without_a_function_is_refused() -> None:
    with pytest.raises(SynthError, match=r"write path/to/file\.py:function"):
        InputFunction("gpt-bytes")


def test_a_file_imports_from_its_own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "sizes_of_this_test.py").write_text("SIZE = 3\n")
    file = tmp_path / "uses_sizes.py"
    file.write_text(
        "import torch\nfrom sizes_of_this_test import SIZE\n"
        "def batch():\n    return torch.zeros(SIZE), torch.zeros(SIZE)\n"
    )
    assert InputFunction(f"{file}:batch").of(0).num_samples == 3
    monkeypatch.chdir(tmp_path)
    assert InputFunction("uses_sizes:batch").of(0).num_samples == 3


def inputs(data: FunctionData, first: int, count: int) -> list[float]:
    values: list[Tensor] = [x for x, _ in data.mini_batch(first, count, 2)]
    return [value[0, 0].item() for value in values]


def test_samples_are_taken_from_a_position_and_epochs_end(file: Path) -> None:
    data = FunctionData(f"{file}:listed", 2, seed=0, epochs=2)
    assert (data.sequences_per_epoch, data.num_sequences) == (6, 12)
    assert inputs(data, 4, 4) == [2, 0, 1, 2]
    with pytest.raises(EndOfData):
        inputs(data, 4, 5)
    with pytest.raises(SynthError, match="hold 12 samples"):
        data.check_enough(13)


def test_epochs_of_unknown_length_and_other_sizes_are_refused(file: Path) -> None:
    with pytest.raises(SynthError, match="--epochs 2 needs the number of micro-batches"):
        FunctionData(f"{file}:yielding", 2, seed=0, epochs=2)
    data = FunctionData(f"{file}:tree", 2, seed=0, epochs=None)
    with pytest.raises(SynthError, match="gave 4 samples as micro-batch 0, 2 were profiled"):
        next(data.mini_batch(0, 1, 2))
    data = FunctionData(f"{file}:growing", 2, seed=0, epochs=None)
    with pytest.raises(SynthError, match="other shapes or dtypes as micro-batch 1 than before"):
        list(data.mini_batch(0, 2, 2))


def test_what_a_data_loader_collates_to_a_list_of_two_is_one_micro_batch(file: Path) -> None:
    batch = InputFunction(f"{file}:collated").of(0)
    assert torch.equal(batch.inputs, -batch.targets)
    batch = InputFunction(f"{file}:collated_pairs").of(0)
    first, second = batch.inputs
    assert torch.equal(second, first + 10) and torch.equal(batch.targets[0], first + 20)


def test_tokens_of_another_length_than_profiled_are_refused(file: Path) -> None:
    data = FunctionData(f"{file}:tokens", 2, seed=0, epochs=None, sequence_length=7)
    assert len(list(data.mini_batch(0, 2, 2))) == 2
    data = FunctionData(f"{file}:tokens", 2, seed=0, epochs=None, sequence_length=16)
    with pytest.raises(SynthError, match="samples of 7 tokens as micro-batch 0, 16 were profiled"):
        list(data.mini_batch(0, 1, 2))
