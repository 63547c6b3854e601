"""The processes of a run: which rank this is, on which device, over which backend."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import cast

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore, PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from synth.errors import SynthError
from synth.profile.workload import Workload
from synth.system.processors import num_processors

from .execution.transport.nccl.communicators import prepare_cuda
from .run_folder import run_folder

_INTERFACES = "GLOO_SOCKET_IFNAME"


@dataclass(frozen=True)
class World:
    """This process among the others."""

    rank: int
    size: int
    device: torch.device
    backend: str
    host: str
    processors: int
    restarts: int = 0
    """The number of times that the launcher has restarted the ranks."""


def under_torchrun() -> bool:
    """True if a launcher has set the rendezvous variables of torch.distributed."""
    return all(name in os.environ for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))


def restarts() -> int:
    """The number of times that the launcher has restarted the ranks."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))


def pick_device(wanted: str, local_rank: int = 0) -> torch.device:
    """The device of a local rank: `auto` takes CUDA where there is any.

    Raises:
        SynthError: CUDA was asked for and there is none.
    """
    if wanted not in ("auto", "cpu", "cuda"):
        raise SynthError(f"device {wanted!r} is unknown; write auto, cpu or cuda")
    if wanted == "cpu":
        return torch.device("cpu")
    available = torch.cuda.is_available()
    if wanted == "cuda" and not available:
        raise SynthError("device cuda was asked for, this torch finds none; use --device cpu")
    if not available:
        return torch.device("cpu")
    return torch.device("cuda", local_rank % torch.cuda.device_count())


def prepare_device(workload: Workload, device: torch.device) -> None:
    """Set the number of threads on CPU to that of the profile."""
    if device.type == "cpu":
        torch.set_num_threads(workload.threads)


@contextmanager
def join_world(wanted_device: str = "auto", timeout_s: float = 300.0) -> Iterator[World]:
    """Join the process group that the environment describes; leave it at the end of the block.

    The backend is NCCL if each local rank has a GPU of its own, else gloo.

    Raises:
        SynthError: gloo is to use an interface that this machine has not.
    """
    _check_interfaces()
    prepare_cuda()
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    local_rank = int(os.environ["LOCAL_RANK"])
    local_size = int(os.environ.get("LOCAL_WORLD_SIZE", size))
    device = pick_device(wanted_device, local_rank)
    own_gpu = device.type == "cuda" and local_size <= torch.cuda.device_count()
    backend = "nccl" if own_gpu else "gloo"
    if device.type == "cuda":
        torch.cuda.set_device(device)
        processors = min(local_size, torch.cuda.device_count())
    else:
        processors = num_processors()
    timeout = timedelta(seconds=timeout_s)
    dist.init_process_group(
        backend,
        store=_store(timeout),
        rank=rank,
        world_size=size,
        timeout=timeout,
        device_id=device if backend == "nccl" else None,
    )
    # After a failure the group is left as it is: shutting NCCL down would wait for transfers whose
    # other end waits for this rank. The process ends anyway, and the others notice that.
    yield World(rank, size, device, backend, socket.gethostname(), processors, restarts())
    dist.destroy_process_group()


def _check_interfaces() -> None:
    """Refuse interfaces for gloo that are not there."""
    named = os.environ.get(_INTERFACES, "")
    there = [name for _, name in socket.if_nameindex()]
    missing = [name for name in named.split(",") if named and name not in there]
    if missing:
        raise SynthError(
            f"{_INTERFACES} names {', '.join(map(repr, missing))}, and {socket.gethostname()} has "
            f"no such network interface; it has {', '.join(there)}: name one of these, or unset "
            f"the variable"
        )


def _store(timeout: timedelta) -> Store:
    """The store of this start of the ranks: a file, if the launcher named a folder for it.

    torchrun (2.13) shares its own store between all starts, in which gloo would find the addresses
    of dead ranks (pytorch #135712). Its count of starts is common to all ranks on one node only. On
    several nodes, TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 makes it use a new store for each start.
    """
    folder = run_folder()
    if folder is not None:
        file = FileStore(f"{folder}/store-{restarts()}", int(os.environ["WORLD_SIZE"]))
        file.set_timeout(timeout)
        return file
    store, _, size = next(rendezvous("env://", timeout=timeout))
    if int(os.environ.get("LOCAL_WORLD_SIZE", 0)) == size:
        return PrefixStore(f"start-{restarts()}", store)
    return cast(Store, store)


def describe_device(device: torch.device) -> str:
    """The name of the hardware, for provenance."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        with open("/proc/cpuinfo") as file:
            names = [line.split(":", 1)[1].strip() for line in file if "model name" in line]
    except OSError:
        names = []
    return names[0] if names else "CPU"
