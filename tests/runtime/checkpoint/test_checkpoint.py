"""A checkpoint is complete or absent, for any failure while it is written."""

import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from synth.errors import SynthError, TrainingDiverged
from synth.profile.optimizer import OptimizerSpec
from synth.runtime.checkpoint import CheckpointOptions, TrainingState
from synth.runtime.checkpoint.checkpointer import Checkpointer
from synth.runtime.optimize import StageSteps, StepSettings, build_steps


class Training:
    """A layer of one rank with its optimizer, and what the checkpoints say."""

    def __init__(self, rank: int, folder: str, *, resume: bool = False, keep: int = 0) -> None:
        self.layer = nn.Linear(100, 100)
        self.steps: StageSteps = build_steps(
            {0: self.layer}, OptimizerSpec(), StepSettings(0.1), device=torch.device("cpu")
        )
        self.lines: list[str] = []
        self.checkpointer = Checkpointer(
            CheckpointOptions(folder=Path(folder), resume=resume, keep=keep),
            {f"layer.{rank}": self.layer},
            self.steps,
            timeout_s=300,
            tell=self.lines.append,
        )

    def save(self, step: int) -> None:
        with torch.no_grad():
            self.layer.weight.fill_(step)
        self.checkpointer.save(state_of(step))

    def load(self) -> tuple[int, float]:
        """The step restored, and what the weight was then."""
        found = self.checkpointer.restore(lambda state: None)
        assert found is not None
        return found.step, float(self.layer.weight.detach().mean())


def state_of(step: int) -> TrainingState:
    return TrainingState(step=step, sequences=0, seed=0, model="m", layers=("a", "b"), plan="p")


@contextmanager
def disk_of(num_bytes: int) -> Iterator[None]:
    """No file can grow beyond this: the kernel's own error, as from a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def save_on_a_full_disk(rank: int, world_size: int, folder: str) -> Any:
    training = Training(rank, folder)
    training.save(1)
    training.checkpointer.wait()
    with disk_of(20_000 if rank == 1 else 1 << 30):
        training.save(2)
        training.checkpointer.wait()
    failed_then = training.checkpointer.failed_step
    left = sorted(path.name for path in Path(folder).glob("step-*")) if rank == 0 else None
    training.save(3)
    training.checkpointer.wait()
    return failed_then, left, training.checkpointer.failed_step, training.lines


def load_again(rank: int, world_size: int, folder: str) -> Any:
    return Training(rank, folder, resume=True).load()


def lose_the_folder(rank: int, world_size: int, folder: str) -> list[str]:
    training = Training(rank, folder)
    for step in (1, 2):
        training.save(step)
        training.checkpointer.wait()
        if step == 1 and rank == 0:
            shutil.rmtree(folder)
    return training.lines


def test_training_saves_on_in_a_folder_that_was_removed(tmp_path: Path, pool: Any) -> None:
    folder = tmp_path / "saved"
    lines, _ = pool.run(lose_the_folder, 2, str(folder))
    assert lines[1] == f"checkpoint of step 2 written to {folder / 'step-2'}"
    assert {path.name for path in folder.iterdir()} == {"step-2", ".lock"}
    assert pool.run(load_again, 2, str(folder)) == [(2, 2.0)] * 2


def test_a_full_disk_costs_that_checkpoint_and_no_other(tmp_path: Path, pool: Any) -> None:
    first, second = pool.run(save_on_a_full_disk, 2, str(tmp_path))
    failed_then, left, failed_now, lines = first
    assert failed_then == second[0] == 2
    assert left == ["step-1"]
    assert failed_now is None
    assert "checkpoint of step 2 could not be written: rank 1: File too large" in lines[1]
    assert "that of step 1 is there; training continues" in lines[1]
    assert pool.run(load_again, 2, str(tmp_path)) == [(3, 3.0)] * 2


def save_what_is_no_number(rank: int, world_size: int, folder: str) -> str:
    training = Training(rank, folder)
    training.save(1)
    if rank == 1:
        with torch.no_grad():
            training.layer.bias[7] = torch.nan
    try:
        training.save(2)
    except TrainingDiverged as error:
        return str(error)
    return "saved"


def test_what_is_no_number_is_not_saved_and_all_ranks_hear_of_it(tmp_path: Path, pool: Any) -> None:
    messages = pool.run(save_what_is_no_number, 2, str(tmp_path))
    assert messages[0] == messages[1]
    assert "model.layer.1.bias is not finite after step 2; no checkpoint is made" in messages[0]
    assert {path.name for path in tmp_path.iterdir()} == {"step-1", ".lock"}
    assert pool.run(load_again, 2, str(tmp_path)) == [(1, 1.0)] * 2


class OwnLoop:
    """A training loop of the user's own, with an optimizer of torch's."""

    def __init__(self, rank: int, folder: str, name: str, *, resume: bool = False) -> None:
        torch.manual_seed(3 if resume else rank)
        self.layer = nn.Linear(8, 8)
        made = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad}
        more = {"momentum": 0.9} if name == "sgd" else {}
        self.optimizer = made[name](self.layer.parameters(), lr=0.1, **more)
        options = CheckpointOptions(folder=Path(folder), resume=resume)
        layers = {f"layer.{rank}": self.layer}
        self.checkpointer = Checkpointer(options, layers, self.optimizer, timeout_s=300)

    def step(self, number: int) -> None:
        x = torch.randn(4, 8, generator=torch.Generator().manual_seed(number))
        self.optimizer.zero_grad()
        self.layer(x).square().sum().backward()
        self.optimizer.step()


def train_in_two_parts(rank: int, world_size: int, folder: str, name: str) -> tuple[Any, Any]:
    """The weights after five steps, and after two, a checkpoint, and three more."""
    whole = OwnLoop(rank, folder, name)
    for number in range(5):
        whole.step(number)
        if number == 1:
            whole.checkpointer.save(state_of(2))
    whole.checkpointer.wait()
    parted = OwnLoop(rank, folder, name, resume=True)
    found = parted.checkpointer.restore(lambda state: None)
    assert found is not None
    for number in range(found.step, 5):
        parted.step(number)
    return whole.layer.weight.detach(), parted.layer.weight.detach()


@pytest.mark.parametrize("name", ["adamw", "sgd", "adagrad"])
def test_training_with_an_optimizer_of_torchs_goes_on_as_if_nothing_had_been(
    tmp_path: Path, pool: Any, name: str
) -> None:
    for whole, parted in pool.run(train_in_two_parts, 2, str(tmp_path), name):
        assert torch.equal(whole, parted)


OPTIMIZERS: dict[str, tuple[Callable[..., torch.optim.Optimizer], dict[str, float]]] = {
    "AdamW": (torch.optim.AdamW, {}),
    "plain SGD": (torch.optim.SGD, {}),
    "SGD with momentum": (torch.optim.SGD, {"momentum": 0.9}),
    "SGD with dampening": (torch.optim.SGD, {"momentum": 0.9, "dampening": 0.5}),
    "NAdam": (torch.optim.NAdam, {}),
    "ASGD": (torch.optim.ASGD, {"t0": 1.0}),
    "Rprop": (torch.optim.Rprop, {}),
    "RMSprop": (torch.optim.RMSprop, {"momentum": 0.9}),
    "Adagrad": (torch.optim.Adagrad, {}),
}


class Half(nn.Module):
    """A layer of which one trainable parameter is used from step 2 on, and one never."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.used = nn.Parameter(torch.randn(8, 8, generator=generator))
        self.later = nn.Parameter(torch.randn(8, 8, generator=generator))
        self.unused = nn.Parameter(torch.randn(8, generator=generator))


class HalfUsed:
    """Training of such a layer; its weights differ only where it is resumed."""

    def __init__(self, folder: Path, name: str, *, resume: bool = False) -> None:
        self.layer = Half(seed=4 if resume else 3)
        kind, more = OPTIMIZERS[name]
        self.optimizer = kind(self.layer.parameters(), lr=0.1, **more)
        options = CheckpointOptions(folder=folder, resume=resume)
        layers = {"layer": self.layer}
        self.checkpointer = Checkpointer(options, layers, self.optimizer, timeout_s=300)

    def train(self, first: int, end: int) -> list[torch.Tensor]:
        """Take the steps from one to before the other; the weights then."""
        for number in range(first, end):
            x = torch.randn(4, 8, generator=torch.Generator().manual_seed(number))
            self.optimizer.zero_grad()
            weight = self.layer.used + self.layer.later if number >= 2 else self.layer.used
            (x @ weight).square().sum().backward()
            self.optimizer.step()
        return [p.detach().clone() for p in self.layer.parameters()]

    def saved(self, step: int) -> None:
        self.checkpointer.save(state_of(step))
        self.checkpointer.wait()

    def restored(self) -> int:
        found = self.checkpointer.restore(lambda state: None)
        assert found is not None
        return found.step


def train_half(rank: int, world_size: int, folder: str, name: str) -> list[list[torch.Tensor]]:
    """The weights after four steps: unsaved; saved at 0 and 1; resumed from there."""
    found = [HalfUsed(Path(folder) / "none", name).train(0, 4)]
    ahead, one = Path(folder) / "0", Path(folder) / "1"
    saving = HalfUsed(ahead, name)
    saving.saved(0)
    found.append(saving.train(0, 4))
    saving = HalfUsed(one, name)
    saving.train(0, 1)
    saving.saved(1)
    found.append(saving.train(1, 4))
    for path in (ahead, one):
        resumed = HalfUsed(path, name, resume=True)
        found.append(resumed.train(resumed.restored(), 4))
    return found


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_no_save_and_no_resume_leaves_a_trace_in_training_however_early_it_is(
    tmp_path: Path, pool: Any, name: str
) -> None:
    (weights,) = pool.run(train_half, 1, str(tmp_path), name)
    for other in weights[1:]:
        assert all(torch.equal(a, b) for a, b in zip(weights[0], other, strict=True))


def resume_with_another(rank: int, world_size: int, folder: str, first: str, then: str) -> str:
    saving = HalfUsed(Path(folder), first)
    saving.train(0, 1)
    saving.saved(1)
    try:
        HalfUsed(Path(folder), then, resume=True).restored()
    except SynthError as error:
        return str(error)
    return "loaded"


@pytest.mark.parametrize("first", ["plain SGD", "SGD with momentum"])
def test_what_another_optimizer_kept_is_refused(tmp_path: Path, pool: Any, first: str) -> None:
    (message,) = pool.run(resume_with_another, 1, str(tmp_path), first, "AdamW")
    assert "cannot load the checkpoint" in message
    assert "this run's exp_avg, exp_avg_sq, step; train with the same optimizer" in message


def load_damaged(rank: int, world_size: int, folder: str) -> str:
    try:
        Training(rank, folder, resume=True).load()
    except SynthError as error:
        return str(error)
    return "loaded"


def save_once(rank: int, world_size: int, folder: str) -> None:
    training = Training(rank, folder)
    training.save(1)
    training.checkpointer.wait()


def test_a_checkpoint_damaged_later_is_refused_by_name(tmp_path: Path, pool: Any) -> None:
    pool.run(save_once, 2, str(tmp_path))
    (tmp_path / "step-1" / "rank-1.safetensors").unlink()
    messages = pool.run(load_damaged, 2, str(tmp_path))
    assert all("cannot load the checkpoint" in message for message in messages)
    assert all("rank-1.safetensors: No such file" in message for message in messages)
    (tmp_path / "step-1" / "training.json").write_bytes(b"")
    messages = pool.run(load_damaged, 2, str(tmp_path))
    assert all("cannot load the checkpoint" in message for message in messages)
    assert all("training.json is damaged" in message for message in messages)
