"""A rank is killed: without a launcher, too, the others end within seconds and name it."""

import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import FileStore

from synth.families import generate
from tests.runtime.gloo_pool import forkserver

pytestmark = pytest.mark.skipif(not Path("/proc").is_dir(), reason="processes are seen in /proc")

SIZE, VICTIM = 3, 1
WIDTH = 9_000  # elements of a message that goes through gloo
LIMIT_S = 300.0  # after which ranks that notice nothing give up


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Scale(nn.Module):
    """Kills its process at one of its calls."""

    def __init__(self, last_call: int | None) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.last_call, self.calls = last_call, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += torch.is_grad_enabled()
        if self.calls == self.last_call:
            die()
        return x * self.scale


def step_until_one_is_killed(rank: int, name: str, when: str) -> str:
    """Take two steps; the victim dies while it is made, in the first one, or between them."""
    from synth.errors import RunFailure
    from synth.runtime.pipeline import Pipeline, pipeline

    is_victim = rank == VICTIM
    if is_victim and when == "made":
        made: Any = pipeline
        made.prepare_rank = lambda *_: die()
    schedule = generate(name, SIZE, SIZE)
    held = {stage for stage, _ in schedule.placement.held[rank]}
    stages = {s: Scale(2 if is_victim and when == "first" else None) for s in held}
    x = torch.ones(SIZE * WIDTH, 1)
    try:
        mine = Pipeline(schedule, stages, loss=nn.functional.mse_loss, timeout_s=LIMIT_S)
        batch = mine.split(x, targets=x)
        mine.step(batch)
        if is_victim and when == "between":
            die()
        mine.step(batch)
    except RunFailure as error:
        return str(error)
    return "nothing failed"


def serve(rank: int, folder: Path, name: str, when: str) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    store = FileStore(str(folder / "store"), SIZE)
    limit = timedelta(seconds=LIMIT_S)
    dist.init_process_group("gloo", rank=rank, world_size=SIZE, store=store, timeout=limit)
    said = step_until_one_is_killed(rank, name, when)
    (folder / f"said-{rank}").write_text(said)
    os._exit(0)  # the group's end would wait for the victim


@pytest.mark.parametrize(
    ("name", "when"),
    [
        ("1f1b", "made"),
        ("1f1b", "first"),
        ("weipipe", "between"),
        ("roundpipe:2", "first"),
        ("roundpipe:2", "between"),
    ],
)
def test_the_others_end_within_seconds_naming_the_rank(
    tmp_path: Path, name: str, when: str
) -> None:
    context = forkserver()
    started = [context.Process(target=serve, args=(r, tmp_path, name, when)) for r in range(SIZE)]
    for process in started:
        process.start()
    started[VICTIM].join()
    killed_at = time.monotonic()
    for process in started:
        process.join()
    assert time.monotonic() - killed_at < LIMIT_S / 2
    victim = started[VICTIM].pid
    for rank in set(range(SIZE)) - {VICTIM}:
        said = (tmp_path / f"said-{rank}").read_text()
        assert said.startswith(f"rank {rank} ")
        assert said.endswith(f"rank {VICTIM} is gone: its process {victim} has ended")
    shared = Path("/dev/shm").glob(f"synth-host-*-{started[0].pid}-*")
    assert sys.platform != "linux" or not list(shared)


def leave_blocks(folder: Path) -> None:
    from synth.runtime.execution.transport.host.block_names import new_prefix

    Path(f"{new_prefix(folder)}stage-0-0").touch()
    die()


def test_blocks_whose_ranks_were_all_killed_are_removed_by_the_next_pipeline(
    tmp_path: Path,
) -> None:
    from synth.runtime.execution.transport.host.block_names import new_prefix, remove_leftovers

    elsewhere = tmp_path / "synth-host-0123456789ab-1-1-0123456789abcdef-signals"
    elsewhere.touch()
    living = Path(f"{new_prefix(tmp_path)}signals")
    living.touch()
    killed = forkserver().Process(target=leave_blocks, args=(tmp_path,))
    killed.start()
    killed.join()
    assert len(list(tmp_path.iterdir())) == 3
    remove_leftovers(tmp_path)
    assert set(tmp_path.iterdir()) == {elsewhere, living}


class KilledInGather:
    """A group whose rank dies when it has told the others the address of its socket."""

    rank = 0

    @property
    def private(self) -> Any:
        return self

    def on_abort(self, abort: Any) -> None:
        pass

    def gather(self, address: str) -> None:
        assert Path(address).is_socket()
        die()


def connect_and_be_killed(folder: Path) -> None:
    from synth.runtime.execution.transport.gloo.eager_links import EagerLinks
    from synth.runtime.run_folder import named_to_ranks

    group: Any = KilledInGather()
    with named_to_ranks(folder):
        EagerLinks(group, [(0, 1)], {}, 1.0)


def test_a_socket_whose_rank_was_killed_is_left_in_the_folder_that_the_launcher_removes(
    tmp_path: Path,
) -> None:
    killed = forkserver().Process(target=connect_and_be_killed, args=(tmp_path,))
    killed.start()
    killed.join()
    assert killed.exitcode == -signal.SIGKILL
    assert [path.is_socket() for path in tmp_path.glob("*/*")] == [True]
