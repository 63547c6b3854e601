"""Every kind of tensor comes back bit for bit, and each is written once."""

import io
import json
import os
import pickle
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING, StorageMeta

from synth.errors import SynthError
from synth.runtime.checkpoint import CheckpointOptions, TrainingState
from synth.runtime.checkpoint.checkpointer import Checkpointer
from synth.runtime.checkpoint.errors import Damaged
from synth.runtime.checkpoint.version_1 import read_metadata


class Kinds(nn.Module):
    """A layer of what there is: dtypes, layouts, no dimension, no element, two names."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.plain = nn.Parameter(torch.randn(5, 3))
        self.transposed = nn.Parameter(torch.randn(5, 3).t())
        self.strided = nn.Parameter(torch.randn(4, 6)[::2, ::3])
        self.scalar = nn.Parameter(torch.randn(()))
        self.empty = nn.Parameter(torch.empty(0, 4))
        self.narrow = nn.Parameter(torch.randn(7).bfloat16())
        self.binary16 = nn.Parameter(torch.randn(7).half())
        self.binary64 = nn.Parameter(torch.randn(3).double())
        self.complex = nn.Parameter(torch.randn(3, 2, dtype=torch.complex64))
        self.wide_complex = nn.Parameter(torch.randn((), dtype=torch.complex128))
        self.tied = self.plain
        self.register_buffer("conjugate", torch.randn(3, dtype=torch.complex64).conj())
        self.register_buffer("mask", torch.rand(9) < 0.5)
        self.register_buffer("count", torch.randint(99, ()))
        self.register_buffer("ids", torch.randint(99, (3,)).to(torch.uint8))
        self.register_buffer("eighth", torch.randn(3).to(torch.float8_e4m3fn))


def state_of(step: int) -> TrainingState:
    return TrainingState(step=step, sequences=0, seed=0, model="m", layers=("a",), plan="p")


def checkpointer(
    folder: str, layer: nn.Module, optimizer: torch.optim.Optimizer, **options: Any
) -> Checkpointer:
    chosen = CheckpointOptions(folder=Path(folder), **options)
    return Checkpointer(chosen, {"layer": layer}, optimizer, timeout_s=300, tell=lambda line: None)


def save_and_load(rank: int, world_size: int, folder: str) -> list[dict[str, Tensor]]:
    """The state of a layer and its optimizer, as saved and as loaded over other numbers."""
    saved, loaded = Kinds(0), Kinds(1)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (saved, loaded)]
    for parameter in saved.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizers[0].step()
    saving = checkpointer(folder, saved, optimizers[0])
    saving.save(state_of(1))
    saving.wait()
    assert saving.failed_step is None
    checkpointer(folder, loaded, optimizers[1], resume=True).restore(lambda state: None)
    return [everything(m, o) for m, o in zip((saved, loaded), optimizers, strict=True)]


def everything(layer: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    found = dict(layer.state_dict())
    for name, parameter in layer.named_parameters():
        found[f"{name} momentum"] = optimizer.state[parameter]["momentum_buffer"]
    return found


@pytest.mark.parametrize("num_peers", [1, 2])
def test_every_kind_of_tensor_comes_back_bit_for_bit(
    tmp_path: Path, pool: Any, num_peers: int
) -> None:
    for saved, loaded in pool.run(save_and_load, num_peers, str(tmp_path)):
        assert saved.keys() == loaded.keys()
        for name, tensor in saved.items():
            assert loaded[name].dtype == tensor.dtype
            assert loaded[name].shape == tensor.shape
            assert loaded[name].tolist() == tensor.tolist(), name


def test_tied_and_replicated_tensors_are_written_once_and_by_all_peers_alike(
    tmp_path: Path, pool: Any
) -> None:
    pool.run(save_and_load, 2, str(tmp_path))
    files = sorted((tmp_path / "step-1").glob("*.safetensors"))
    held = [load_file(file) for file in files]  # the package's own reader
    names = [name for tensors in held for name in tensors]
    assert len(names) == len(set(names))
    manifest = json.loads((tmp_path / "step-1" / "training.json").read_text())
    assert set(names) == set(manifest["tensors"])
    assert manifest["aliases"] == {
        "model.layer.tied": "model.layer.plain",
        "optimizer.layer.tied.momentum_buffer": "optimizer.layer.plain.momentum_buffer",
    }
    sizes = [sum(t.numel() * t.element_size() for t in tensors.values()) for tensors in held]
    assert abs(sizes[0] - sizes[1]) <= 60  # the largest tensor


def save_sparse(rank: int, world_size: int, folder: str) -> str:
    layer = nn.Linear(2, 2)
    if rank == 1:
        layer.register_buffer("sparse", torch.eye(2).to_sparse())
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    try:
        checkpointer(folder, layer, optimizer).save(state_of(1))
    except SynthError as error:
        return str(error)
    return "saved"


def test_what_a_checkpoint_cannot_hold_is_refused_by_name_on_all_ranks(
    tmp_path: Path, pool: Any
) -> None:
    for message in pool.run(save_sparse, 2, str(tmp_path)):
        assert message.startswith("model.layer.sparse is a torch.float32 tensor of layout")
        assert "keep dense numbers" in message


def load_wider(rank: int, world_size: int, folder: str) -> str:
    for width in (2, 3):
        layer = nn.Linear(width, 2)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        made = checkpointer(folder, layer, optimizer, resume=width == 3)
        if width == 2:
            made.save(state_of(1))
            made.wait()
    try:
        made.restore(lambda state: None)
    except SynthError as error:
        return str(error)
    return "loaded"


def test_a_tensor_of_another_shape_is_refused_by_name(tmp_path: Path, pool: Any) -> None:
    (message,) = pool.run(load_wider, 1, str(tmp_path))
    assert "model.layer.weight is of shape [2, 2] in the checkpoint, of [2, 3] here" in message


def shard_save_and_load(rank: int, world_size: int, folder: str) -> list[list[Tensor]]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (world_size,))
    made = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        layer = nn.Linear(5, 3)
        fully_shard(layer, mesh=mesh)
        optimizer = torch.optim.AdamW(layer.parameters(), foreach=False)
        made.append((layer, optimizer))
    layer, optimizer = made[0]
    layer(torch.randn(2, 5)).sum().backward()
    optimizer.step()
    saving = checkpointer(folder, layer, optimizer)
    saving.save(state_of(1))
    saving.wait()
    checkpointer(folder, *made[1], resume=True).restore(lambda state: None)
    return [
        [
            t.full_tensor()  # type: ignore[union-attr]  # all are DTensors
            for p in layer.parameters()
            for t in (p.detach(), optimizer.state[p]["exp_avg"])
        ]
        for layer, optimizer in made
    ]


def test_sharded_parameters_are_saved_whole_and_loaded_as_shards(tmp_path: Path, pool: Any) -> None:
    for saved, loaded in pool.run(shard_save_and_load, 2, str(tmp_path)):
        assert all(torch.equal(a, b) for a, b in zip(saved, loaded, strict=True))
    files = (tmp_path / "step-1").glob("*.safetensors")
    shapes = {name: tuple(t.shape) for file in files for name, t in load_file(file).items()}
    assert shapes["model.layer.weight"] == (3, 5)


def save_as_version_1(rank: int, world_size: int, folder: str) -> list[Tensor]:
    """Save as format version 1 did."""
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    torch.manual_seed(rank)
    layer = nn.Linear(5, 3)
    tensors = {f"model.layer.{rank}.{n}": p.detach() for n, p in layer.named_parameters()}
    path = Path(folder) / "step-4"
    save(tensors, storage_writer=FileSystemWriter(path))
    head = {"format": "synth-checkpoint", "schema_version": 1}
    text = json.dumps({**head, **state_of(4).model_dump(exclude_none=True)})
    (path / "training.json").write_text(text)
    dist.barrier()
    return [p.detach() for p in layer.parameters()]


def load_version_1(rank: int, world_size: int, folder: str) -> tuple[list[Tensor], list[str]]:
    layer, lines = nn.Linear(5, 3), list[str]()
    loading = Checkpointer(
        CheckpointOptions(folder=Path(folder), resume=True),
        {f"layer.{rank}": layer},
        torch.optim.SGD(layer.parameters(), lr=0.1),
        timeout_s=300,
        tell=lines.append,
    )
    found = loading.restore(lambda state: None)
    assert found is not None and found.step == 4
    return [p.detach() for p in layer.parameters()], lines


def test_a_checkpoint_of_the_first_version_is_read_with_a_warning(
    tmp_path: Path, pool: Any
) -> None:
    saved = pool.run(save_as_version_1, 2, str(tmp_path))
    loaded = pool.run(load_version_1, 2, str(tmp_path))
    for before, (after, _) in zip(saved, loaded, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert "is of format version 1, which has no checksums" in loaded[0][1][0]


class Canary:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self._path),)


def test_files_of_the_first_version_run_no_code_and_are_refused_when_they_are_missing(
    tmp_path: Path, pool: Any
) -> None:
    pool.run(save_as_version_1, 2, str(tmp_path))
    data = next((tmp_path / "step-4").glob("*.distcp"))
    for content in (pickle.dumps(Canary(tmp_path / "canary")), saved_by_torch(tmp_path / "canary")):
        data.write_bytes(content)
        with pytest.raises(AssertionError, match="Damaged: cannot load the checkpoint"):
            pool.run(load_version_1, 2, str(tmp_path))
        assert not (tmp_path / "canary").exists()
    data.unlink()
    with pytest.raises(AssertionError, match=r"Damaged: cannot load the checkpoint .*No such file"):
        pool.run(load_version_1, 2, str(tmp_path))


@pytest.mark.parametrize("name", ["../outside.distcp", "/tmp/outside.distcp", "training.json"])
def test_metadata_of_the_first_version_names_files_beside_it_only(
    tmp_path: Path, pool: Any, name: str
) -> None:
    pool.run(save_as_version_1, 2, str(tmp_path))
    path = tmp_path / "step-4" / ".metadata"
    metadata = pickle.loads(path.read_bytes())
    info = next(iter(metadata.storage_data.values()))
    (tmp_path / "outside.distcp").write_bytes((path.parent / info.relative_path).read_bytes())
    info.relative_path = name
    path.write_bytes(pickle.dumps(metadata))
    with pytest.raises(AssertionError, match=r"Damaged: cannot load .*it names the file"):
        pool.run(load_version_1, 2, str(tmp_path))


class ByName(pickle.Pickler):
    """Pickles members of enumerations by their names, as Python 3.11.0 to 3.11.3 do."""

    def reducer_override(self, one: object) -> Any:
        return (getattr, (type(one), one.name)) if isinstance(one, Enum) else NotImplemented


def test_metadata_that_other_versions_of_python_wrote_are_read(tmp_path: Path, pool: Any) -> None:
    pool.run(save_as_version_1, 2, str(tmp_path))
    path = tmp_path / "step-4" / ".metadata"
    content = io.BytesIO()
    ByName(content, protocol=4).dump(pickle.loads(path.read_bytes()))
    assert b"getattr" in content.getvalue()
    path.write_bytes(content.getvalue())
    assert read_metadata(path.parent).state_dict_metadata


class Attribute:
    """Reads an attribute of something when it is unpickled."""

    def __init__(self, of: object, name: str) -> None:
        self._read = of, name

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, self._read


@pytest.mark.parametrize(
    ("of", "name"), [(dict, "pop"), (_MEM_FORMAT_ENCODING, "mro"), (StorageMeta, "__init__")]
)
def test_metadata_reach_no_attributes_but_members(tmp_path: Path, of: object, name: str) -> None:
    (tmp_path / ".metadata").write_bytes(pickle.dumps(Attribute(of, name)))
    with pytest.raises(Damaged, match="metadata is damaged: it names"):
        read_metadata(tmp_path)


def saved_by_torch(canary: Path) -> bytes:
    content = io.BytesIO()
    torch.save(Canary(canary), content)
    return content.getvalue()
