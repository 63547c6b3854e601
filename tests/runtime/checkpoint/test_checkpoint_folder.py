"""The folder of checkpoints: complete ones, leftovers, the lock, and runs that are killed."""

import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from synth.errors import SynthError
from synth.runtime.checkpoint import CheckpointFolder, CheckpointOptions
from synth.runtime.checkpoint.checkpointer import Checkpointer


def write(folder: CheckpointFolder, step: int, keep: int = 0) -> None:
    """A checkpoint as far as the folder knows."""
    folder.partial(step).mkdir()
    folder.complete(step, str(step), keep)


def test_only_what_is_complete_counts(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    write(folder, 5)
    folder.partial(9).mkdir()
    (tmp_path / "step-x").mkdir()
    assert folder.steps() == [5]


def test_the_last_ones_are_kept_by_number_not_by_name(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    for step in (8, 9, 10, 11):
        write(folder, step, keep=2)
    assert folder.steps() == [10, 11]
    assert not list(tmp_path.glob("*.partial"))


def test_what_an_ended_run_left_unfinished_is_cleared_away(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    write(folder, 5)
    folder.partial(9).mkdir()
    folder.create()
    assert {path.name for path in tmp_path.iterdir()} == {"step-5", ".lock"}


def test_two_processes_do_not_write_in_one_folder(tmp_path: Path) -> None:
    # A lock of the same process would be its own, so somebody else holds it.
    code = (
        "import sys, pathlib; from synth.runtime.checkpoint.folder import CheckpointFolder as F; "
        "folder = F(pathlib.Path(sys.argv[1])); folder.create(); print('held', flush=True); input()"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        folder = CheckpointFolder(tmp_path)
        folder.partial(9).mkdir()
        with pytest.raises(SynthError, match="another run writes checkpoints in"):
            folder.create()
        assert folder.partial(9).is_dir()
        other.communicate("\n")
    folder.create()
    assert not folder.partial(9).exists()


OTHER_RUN = (
    "import sys, pathlib; from synth.errors import SynthError; "
    "from synth.runtime.checkpoint.folder import CheckpointFolder as F\n"
    "try: F(pathlib.Path(sys.argv[1])).create()\n"
    "except SynthError as error: print(error)\n"
)


def test_a_folder_removed_while_a_run_writes_comes_back_with_its_lock(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path / "saved")
    folder.create()
    shutil.rmtree(folder.path)
    folder.begin(5)
    folder.complete(5, "{}", keep=0)
    other = subprocess.run(
        [sys.executable, "-c", OTHER_RUN, str(folder.path)], stdout=subprocess.PIPE, text=True
    )
    assert "another run writes checkpoints in" in other.stdout
    assert folder.steps() == [5]


def test_a_folder_that_another_run_has_taken_meanwhile_is_left_to_it(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path / "saved")
    folder.create()
    shutil.rmtree(folder.path)
    command = [sys.executable, "-c", OTHER_RUN + "print('taken', flush=True); input()"]
    with subprocess.Popen(
        [*command, str(folder.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None and other.stdout.readline() == "taken\n"
        folder.partial(5).mkdir()  # the other run's
        with pytest.raises(SynthError, match="another run writes checkpoints in"):
            folder.begin(5)
        folder.discard(5)
        assert folder.partial(5).is_dir()
        other.communicate("\n")


def test_a_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("")
    with pytest.raises(SynthError, match=r"cannot write checkpoints in .*file"):
        CheckpointFolder(path).create()


SAVE_FOR_EVER = """
import sys, pathlib, torch, torch.distributed as dist
from synth.runtime.checkpoint import CheckpointOptions, TrainingState
from synth.runtime.checkpoint.checkpointer import Checkpointer
folder = pathlib.Path(sys.argv[1])
dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
layer = torch.nn.Linear(400, 400)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
options = CheckpointOptions(folder=folder, keep=3, resume=True)
saving = Checkpointer(options, {"layer.0": layer}, optimizer, timeout_s=60)
for step in range(int(sys.argv[2]), 10**6):
    torch.nn.init.constant_(layer.weight, step)
    saving.save(TrainingState(step=step, sequences=0, seed=0, model="m", layers=("a",), plan="p"))
    if step == int(sys.argv[2]) + 3:
        print("saving", flush=True)
"""


def load_each(rank: int, world_size: int, folder: str) -> list[tuple[int, float]]:
    found = []
    for step in reversed(CheckpointFolder(Path(folder)).steps()):
        layer = nn.Linear(400, 400)
        loading = Checkpointer(
            CheckpointOptions(folder=Path(folder), resume_from=step),
            {"layer.0": layer},
            torch.optim.SGD(layer.parameters(), lr=0.1),
            timeout_s=60,
        )
        state = loading.restore(lambda state: None)
        assert state is not None
        found += [(state.step, float(number)) for number in layer.weight.detach().unique()]
    return found


def test_whenever_a_run_is_killed_what_is_complete_can_be_loaded(tmp_path: Path, pool: Any) -> None:
    for attempt in range(3):
        command = [sys.executable, "-c", SAVE_FOR_EVER, str(tmp_path), str(1 + 10_000 * attempt)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None and process.stdout.readline() == "saving\n"
            time.sleep(0.0371 * attempt)
            process.kill()
        assert len(CheckpointFolder(tmp_path).steps()) in (3, 4)  # 4 before one is dropped
    loaded = pool.run(load_each, 1, str(tmp_path))[0]
    assert len(loaded) >= 3
    assert all(step == weight for step, weight in loaded)


def test_a_lock_that_is_a_link_leaves_the_file_it_leads_to(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    for number, link in enumerate((Path.symlink_to, Path.hardlink_to)):
        folder = tmp_path / f"saved-{number}"
        folder.mkdir()
        link(folder / ".lock", precious)
        with pytest.raises(SynthError, match=r"\.lock is (a link|another file than a lock)"):
            CheckpointFolder(folder).create()
    assert precious.read_text() == "mine"


def test_a_checkpoint_that_is_linked_into_a_folder_is_dropped_and_stays_where_it_is(
    tmp_path: Path,
) -> None:
    base = tmp_path / "base" / "step-2"
    base.mkdir(parents=True)
    (base / "kept").write_text("mine")
    folder = CheckpointFolder(tmp_path / "saved")
    folder.create()
    folder.of(2).symlink_to(base)
    folder.begin(3)
    folder.complete(3, "manifest", keep=1)
    assert folder.steps() == [3]
    assert not folder.partial(2).is_symlink()
    assert (base / "kept").read_text() == "mine"
