"""What is read of a folder of weights, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import _save_state_dict

import synth
from synth.errors import Mismatch
from synth.runtime.execution.transport.in_process.ranks import run_ranks
from synth.runtime.pretrained import AllRanks, loading


def read(folder: Path, *layers: nn.Module) -> None:
    loading.load_weights(folder, {f"{i}": layer for i, layer in enumerate(layers)})


@pytest.mark.parametrize("dtype", [torch.int32, torch.complex64, torch.float8_e4m3fn])
def test_other_numbers_than_floating_point_ones_are_refused(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    weights = {"0.weight": torch.ones(2, 2).to(dtype), "0.bias": torch.ones(2)}
    save_file(weights, tmp_path / "model.safetensors")
    name = str(dtype).removeprefix("torch.")
    with pytest.raises(Mismatch, match=f"of other numbers: 0.weight is {name}, needed float32"):
        read(tmp_path, nn.Linear(2, 2))


def test_a_single_file_is_read_where_there_is_an_index_too(tmp_path: Path) -> None:
    layer = nn.Linear(2, 2)
    save_file({f"0.{n}": x for n, x in nn.Linear(2, 2).state_dict().items()}, tmp_path / "old")
    index = {"weight_map": {"0.weight": "old", "0.bias": "old"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    ours = {"0.weight": torch.full((2, 2), 3.0), "0.bias": torch.full((2,), 4.0)}
    save_file(ours, tmp_path / "model.safetensors")
    read(tmp_path, layer)
    assert torch.equal(layer.weight, ours["0.weight"])


@pytest.mark.parametrize(
    "prefix", [(), ("model",), ("app", "model"), ("model", "module")], ids=".".join
)
def test_all_ranks_find_the_prefix_of_a_distributed_checkpoint(
    prefix: tuple[str, ...], tmp_path: Path
) -> None:
    names = [f"model.{i}.{name}" for i in (0, 1) for name in ("weight", "bias")]
    weights: Any = {n: torch.ones(2, 2) if "weight" in n else torch.ones(2) for n in names}
    for part in reversed(prefix):
        weights = {part: weights}
    beside = {f"optim.state.{name}.exp_avg": torch.ones(2) for name in names}
    _save_state_dict(weights | (beside if prefix else {}), FileSystemWriter(tmp_path), no_dist=True)
    layers = [nn.Linear(2, 2), nn.Linear(2, 2), nn.Tanh()]  # the last rank has no parameters

    def load(group: Any) -> None:
        ranks = AllRanks(group.rank, group.gather)
        own = {f"model.{group.rank}": layers[group.rank]}
        loading.load_weights(tmp_path, own, ranks=ranks)

    run_ranks(3, load)
    assert all(torch.equal(x, torch.ones_like(x)) for layer in layers for x in layer.parameters())


def test_all_ranks_refuse_what_one_of_them_does_not_expect(tmp_path: Path) -> None:
    weights = {f"{i}.bias": torch.ones(2) for i in range(3)}
    save_file(weights, tmp_path / "model.safetensors")

    class Bias(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bias = nn.Parameter(torch.zeros(2))

    layers = [Bias(), nn.Tanh()]

    def load(group: Any) -> None:
        ranks = AllRanks(group.rank, group.gather)
        with pytest.raises(Mismatch, match=r"unexpected: 1.bias, 2.bias"):
            loading.load_weights(tmp_path, {f"{group.rank}": layers[group.rank]}, ranks=ranks)

    run_ranks(2, load)


def test_weights_that_the_forward_does_not_use_are_expected(tmp_path: Path) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(8, 4), nn.Linear(4, 8)
            self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 4)) for _ in range(2))
            self.unused = nn.Linear(3, 3)

        def forward(self, tokens: Tensor) -> Tensor:
            x = self.embed(tokens)
            for block in self.blocks:
                x = block(x)
            logits: Tensor = self.head(x)
            return logits

    tokens = torch.zeros(2, 4, dtype=torch.long)
    model = Model()
    layers = {piece.name: piece for piece in synth.cut_model(model, tokens, tokens, check=False)}
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    loading.load_weights(tmp_path, layers)
