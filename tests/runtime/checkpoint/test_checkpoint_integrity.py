"""A checkpoint that is not as it was written is refused with the name of the file that differs."""

import hashlib
import json
import os
import pickle
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from synth.errors import SynthError
from synth.runtime.checkpoint import CheckpointOptions, TrainingState
from synth.runtime.checkpoint.checkpointer import Checkpointer
from synth.runtime.checkpoint.errors import Damaged
from synth.runtime.checkpoint.manifest import Manifest

FILES = ("rank-0.safetensors", "rank-1.safetensors", "training.json")


class Training:
    """One layer on each of two ranks, its numbers those of a step."""

    def __init__(self, rank: int, folder: str, **options: Any) -> None:
        self.layer = nn.Linear(5, 3)
        self.optimizer = torch.optim.AdamW(self.layer.parameters())
        self.lines: list[str] = []
        self.checkpointer = Checkpointer(
            CheckpointOptions(folder=Path(folder), keep=0, **options),
            {f"layer.{rank}": self.layer},
            self.optimizer,
            timeout_s=300,
            tell=self.lines.append,
        )

    def save(self, step: int) -> None:
        torch.manual_seed(step)
        for parameter in self.layer.parameters():
            parameter.grad = torch.randn_like(parameter)
        self.optimizer.step()
        self.checkpointer.save(state_of(step))
        self.checkpointer.wait()

    def numbers(self) -> list[Tensor]:
        moments = [t for p in self.layer.parameters() for t in self.optimizer.state[p].values()]
        return [t.detach().clone() for t in (*self.layer.parameters(), *moments)]

    def load(self) -> int:
        found = self.checkpointer.restore(lambda state: None)
        assert found is not None
        return found.step


def state_of(step: int) -> TrainingState:
    return TrainingState(step=step, sequences=8, seed=0, model="m", layers=("a", "b"), plan="p")


def save_three(rank: int, world_size: int, folder: str) -> dict[int, list[Tensor]]:
    training, numbers = Training(rank, folder), {}
    for step in (1, 2, 3):
        training.save(step)
        numbers[step] = training.numbers()
    return numbers


Loaded = tuple[int, list[Tensor], list[str]]


def load(rank: int, world_size: int, folder: str, options: dict[str, Any]) -> Loaded | str:
    """The loaded object, or the error."""
    training = Training(rank, folder, **{"resume": True, **options})
    try:
        step = training.load()
    except SynthError as error:
        return str(error)
    return step, training.numbers(), training.lines


@pytest.fixture
def saved(tmp_path: Path, pool: Any) -> Path:
    """Checkpoints of steps 1, 2 and 3 by two ranks."""
    pool.run(save_three, 2, str(tmp_path))
    return tmp_path


def refusal(pool: Any, folder: Path, **options: Any) -> str:
    """The one message of both ranks."""
    first, second = pool.run(load, 2, str(folder), options)
    assert isinstance(first, str), "it was loaded"
    assert first == second
    assert first.count("\n") == 0
    return first


def flips(rank: int, world_size: int, folder: str, path: str, bits: list[int]) -> list[str]:
    """Flip each of some bits of a file in turn; return the message of each load."""
    file, messages = Path(path), []
    whole = file.read_bytes()
    for bit in bits:
        dist.barrier()
        if rank == 0:
            damaged = bytearray(whole)
            damaged[bit // 8] ^= 1 << bit % 8
            file.write_bytes(damaged)
        dist.barrier()
        found = load(rank, world_size, folder, {})
        messages.append(found if isinstance(found, str) else "loaded")
    dist.barrier()
    if rank == 0:
        file.write_bytes(whole)
    return messages


@pytest.mark.parametrize("name", FILES)
def test_no_flipped_bit_of_any_file_is_loaded(saved: Path, pool: Any, name: str) -> None:
    file = saved / "step-3" / name
    size = file.stat().st_size * 8
    bits = sorted({*range(24), *random.Random(0).sample(range(size), 76), size - 1})
    for messages in pool.run(flips, 2, str(saved), str(file), bits):
        for bit, message in zip(bits, messages, strict=True):
            assert "cannot load the checkpoint" in message, (bit, message)
            assert name in message, (bit, message)
    assert not isinstance(pool.run(load, 2, str(saved), {})[0], str)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kept", [0, 7, 100, -1])
def test_a_file_cut_short_is_refused_by_name(saved: Path, pool: Any, name: str, kept: int) -> None:
    file = saved / "step-3" / name
    file.write_bytes(file.read_bytes()[:kept])
    assert name in refusal(pool, saved)


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_missing_is_named(saved: Path, pool: Any, name: str) -> None:
    (saved / "step-3" / name).unlink()
    message = refusal(pool, saved)
    assert f"cannot load the checkpoint {saved / 'step-3'}: {name}: No such file" in message
    assert "--resume-from last-good continues from the last intact one" in message
    assert "--resume-from STEP from another (there are those of steps: 1, 2)" in message


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_another_step_is_refused_by_name(saved: Path, pool: Any, name: str) -> None:
    shutil.copy(saved / "step-2" / name, saved / "step-3" / name)
    assert name in refusal(pool, saved)


def test_a_whole_checkpoint_under_the_name_of_another_step_is_refused(
    saved: Path, pool: Any
) -> None:
    (saved / "step-3").rename(saved / "step-4")
    assert "training.json is of another checkpoint, of step 3" in refusal(pool, saved)


@pytest.mark.parametrize("key", ["step", "sequences", "seed", "layers", "schema_version"])
def test_a_manifest_that_was_edited_is_refused(saved: Path, pool: Any, key: str) -> None:
    file = saved / "step-3" / "training.json"
    found = json.loads(file.read_text())
    found[key] = ["a"] if key == "layers" else found[key] + 1
    file.write_text(json.dumps(found, indent=1) + "\n")
    assert "training.json is damaged: its checksum does not hold" in refusal(pool, saved)


class Canary:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self._path),)


@pytest.mark.parametrize("name", [*FILES, ".metadata"])
def test_no_pickle_in_any_file_is_executed(
    saved: Path, tmp_path: Path, pool: Any, name: str
) -> None:
    canary = tmp_path / "canary"
    content = pickle.dumps(Canary(canary))
    (saved / "step-3" / name).write_bytes(content)
    if name == ".metadata":  # read of version 1 alone
        old = {"format": "synth-checkpoint", "schema_version": 1}
        text = json.dumps({**old, **state_of(3).model_dump(exclude_none=True)})
        (saved / "step-3" / "training.json").write_text(text)
    assert name in refusal(pool, saved)
    assert not canary.exists()
    pickle.loads(content)
    assert canary.exists()  # it would have sung


def numbers_of(loaded: list[Any], step: int) -> list[list[Tensor]]:
    assert [found[0] for found in loaded] == [step, step]
    return [found[1] for found in loaded]


def test_the_last_good_one_is_gone_on_from_and_later_ones_are_set_aside(
    tmp_path: Path, pool: Any
) -> None:
    before = pool.run(save_three, 2, str(tmp_path))
    (tmp_path / "step-3" / "training.json").unlink()
    damaged = tmp_path / "step-2" / "rank-1.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1])

    after = pool.run(load, 2, str(tmp_path), {"resume_from": "last-good"})

    for saved, loaded in zip(before, numbers_of(after, 1), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(saved[1], loaded, strict=True))
    lines = after[0][2]
    assert "warning: cannot load" in lines[0] and "training.json: No such file" in lines[0]
    assert "rank-1.safetensors is damaged" in lines[1]
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"step-1", "step-2.set-aside", "step-3.set-aside", ".lock"}


def test_an_intact_last_one_is_the_last_good_one(saved: Path, pool: Any) -> None:
    after = pool.run(load, 2, str(saved), {"resume_from": "last-good"})
    assert numbers_of(after, 3)


def test_without_a_good_one_the_message_says_so(saved: Path, pool: Any) -> None:
    for step in (1, 2, 3):
        (saved / f"step-{step}" / "training.json").unlink()
    message = refusal(pool, saved, resume_from="last-good")
    assert "no other checkpoint is there; give another folder to start again" in message


def load_restarted(rank: int, world_size: int, folder: str, source: int | str) -> int:
    layer = nn.Linear(5, 3)
    loading = Checkpointer(
        CheckpointOptions(folder=Path(folder), resume_from=source),
        {f"layer.{rank}": layer},
        torch.optim.AdamW(layer.parameters()),
        timeout_s=300,
        restarted=True,
    )
    found = loading.restore(lambda state: None)
    assert found is not None
    return found.step


def test_ranks_started_again_go_on_from_the_last_one_not_from_the_step_once_asked_for(
    saved: Path, pool: Any
) -> None:
    assert pool.run(load_restarted, 2, str(saved), 1) == [3, 3]
    (saved / "step-3" / "training.json").unlink()
    assert pool.run(load_restarted, 2, str(saved), "last-good") == [2, 2]


def go_on_from_two(rank: int, world_size: int, folder: str) -> int:
    training = Training(rank, folder, resume_from=2)
    step = training.load()
    training.save(step + 1)
    return step


def test_a_step_that_is_asked_for_is_gone_on_from_and_what_follows_is_kept_apart(
    saved: Path, pool: Any
) -> None:
    assert pool.run(go_on_from_two, 2, str(saved)) == [2, 2]
    names = {path.name for path in saved.iterdir()}
    assert names == {"step-1", "step-2", "step-3", "step-3.set-aside", ".lock"}
    assert numbers_of(pool.run(load, 2, str(saved), {}), 3)


def open_only(rank: int, world_size: int, folder: str, options: dict[str, Any]) -> str:
    try:
        Training(rank, folder, **options)
    except SynthError as error:
        return str(error)
    return "opened"


def test_a_step_that_is_not_there_is_refused(saved: Path, pool: Any) -> None:
    for message in pool.run(open_only, 2, str(saved), {"resume_from": 7}):
        assert "holds no checkpoint of step 7; there are those of steps: 1, 2, 3" in message


def test_a_manifest_that_contradicts_itself_is_refused() -> None:
    digest, file = "0" * 64, "rank-0.safetensors"
    stored = {"dtype": "float32", "shape": [1], "sha256": digest}
    data = {
        **state_of(1).to_data(),
        "schema_version": Manifest.VERSION,
        "files": {file: {"bytes": 1, "header_sha256": digest}},
        "tensors": {"a": {"file": file, **stored}},
        "aliases": {"b": "a"},
    }
    assert Manifest.model_validate_file(data, "it").names == {"a", "b"}
    elsewhere = {"a": {"file": "rank-7.safetensors", **stored}}
    with pytest.raises(
        SynthError, match=r"'a' is in rank-7\.safetensors, which is not one of its files"
    ):
        Manifest.model_validate_file(data | {"tensors": elsewhere}, "it")
    with pytest.raises(SynthError, match="alias 'b' is of no tensor that is stored"):
        Manifest.model_validate_file(data | {"aliases": {"b": "c"}}, "it")


class _ManifestOfVersion2(Manifest):
    VERSION = 2


def test_a_manifest_without_numbers_of_updates_is_still_read() -> None:
    written = {**dict(state_of(1)), "updates": None, "files": {}, "tensors": {}, "aliases": {}}
    text = _ManifestOfVersion2.model_validate(written).sealed()
    found = Manifest.unsealed(text.encode(), "it")
    assert isinstance(found, Manifest) and found.state().updates is None
    with pytest.raises(Damaged, match="its checksum does not hold"):
        Manifest.unsealed(text.replace('"step": 1', '"step": 2').encode(), "it")


@pytest.mark.parametrize("name", FILES)
def test_a_pipe_or_a_device_is_not_waited_for(saved: Path, pool: Any, name: str) -> None:
    file = saved / "step-3" / name
    file.unlink()
    os.mkfifo(file)
    assert f"{name} is not a regular file" in refusal(pool, saved)
    file.unlink()
    file.symlink_to("/dev/zero")
    assert f"{name} is not a regular file" in refusal(pool, saved)


def forged(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a manifest, and seal it again."""
    data = json.loads(path.read_text())
    change(data)
    data["checksum"] = ""
    text = json.dumps(data, indent=1, ensure_ascii=False) + "\n"
    digest = hashlib.sha256(text.encode()).hexdigest()
    path.write_text(text.replace('"checksum": ""', f'"checksum": "{digest}"'))


def name_another_file(data: dict[str, Any]) -> None:
    next(iter(data["tensors"].values()))["file"] = "rank-9.safetensors"


def name_no_dtype(data: dict[str, Any]) -> None:
    next(iter(data["tensors"].values()))["dtype"] = "complexfoo"


@pytest.mark.parametrize("change", [name_another_file, name_no_dtype])
def test_a_sealed_manifest_that_is_wrong_is_damage_that_last_good_goes_past(
    saved: Path, pool: Any, change: Callable[[dict[str, Any]], None]
) -> None:
    manifest = saved / "step-3" / "training.json"
    text = manifest.read_text()
    forged(manifest, lambda data: None)
    assert manifest.read_text() == text  # so far it is sealed as the project does
    forged(manifest, change)
    assert "damaged" in refusal(pool, saved)
    for step, _, _ in pool.run(load, 2, str(saved), {"resume_from": "last-good"}):
        assert step == 2
