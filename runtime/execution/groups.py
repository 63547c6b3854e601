"""The processes of one pipeline, as torch.distributed knows them."""

import uuid
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Self, TypeVar

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore
from torch.distributed.device_mesh import DeviceMesh

from synth.errors import RunFailure, SynthError

from . import own_groups
from .failure import describe_failure
from .meeting import Meeting
from .own_groups import OwnGroups

T = TypeVar("T")


class Refused(SynthError):
    """What one rank refused; all know it, and nothing has begun."""


@dataclass(frozen=True)
class Group:
    """Pipeline rank r is the process with the global rank `ranks[r]`.

    `own` are made for this pipeline alone. Where the backend is NCCL, groups come from it instead;
    `beside` are then the ranks of all pipelines of the world, as all processes make them together.
    """

    handle: dist.ProcessGroup | None
    ranks: tuple[int, ...]
    rank: int
    own: OwnGroups
    beside: tuple[tuple[int, ...], ...] | None = None
    noun: str = "rank"
    """For one of them, in messages."""

    @classmethod
    def world(cls, timeout_s: float = 300.0) -> Self:
        """All processes, which call this at the same time.

        Raises:
            SynthError: torch.distributed has not been initialised.
        """
        return cls.of(None, timeout_s)

    @classmethod
    def of(
        cls,
        given: dist.ProcessGroup | DeviceMesh | None,
        timeout_s: float = 300.0,
        noun: str = "rank",
    ) -> Self:
        """From a process group, a one-dimensional device mesh, or none for all processes.

        Its ranks call this at the same time. After `timeout_s` they wait for each other no longer.
        Messages call one of them by the noun.

        Raises:
            SynthError: torch.distributed has not been initialised; the mesh has several
                dimensions; this process is not in the group.
        """
        if not dist.is_initialized():
            raise SynthError(
                "a pipeline needs torch.distributed: call init_process_group first (torchrun sets "
                "what it reads)"
            )
        if isinstance(given, DeviceMesh):
            if given.ndim != 1:
                raise SynthError(
                    f"a pipeline runs along one dimension of a mesh, this one has {given.ndim}: "
                    f"{given.mesh_dim_names}; give mesh['pp'], say"
                )
            given = given.get_group()
        ranks = tuple(dist.get_process_group_ranks(given or dist.group.WORLD))
        rank = dist.get_rank(given)
        if rank < 0:
            raise SynthError(f"process {dist.get_rank()} is not in the pipeline's group {ranks}")
        name, beside = [f"pipeline-{uuid.uuid4().hex}"], None
        with _named(rank):
            if given is not None and "nccl" in _backends(given).values():
                # NCCL splits communicators off that of the world, which takes all its processes.
                everyones: list[tuple[int, ...]] = [()] * dist.get_world_size()
                dist.all_gather_object(everyones, ranks)
                beside = tuple(sorted(set(everyones)))
            dist.broadcast_object_list(name, ranks[0], given)
        world: Any = dist.group.WORLD
        store = PrefixStore(name[0], (given or world).get_group_store())
        return cls(given, ranks, rank, OwnGroups(store, rank, timeout_s, noun), beside, noun)

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.ranks)

    def backend(self, device: torch.device) -> str:
        """What moves a device's tensors: `nccl` or `gloo`."""
        return _backends(self.handle).get(device.type, "gloo")

    @property
    def collectives(self) -> Any:
        """A process group of all its ranks: of its own on gloo, the given one on NCCL."""
        if self._on_nccl:
            return self.handle or dist.group.WORLD
        return self.own.among(range(self.size))

    def subgroup(
        self, ranks: Iterable[int], timeout: timedelta | None = None, purpose: str = ""
    ) -> Any:
        """A group of some of the pipeline's ranks; all of them call this, in the same order.

        For another purpose it is another one. On NCCL it always is, and where several pipelines run
        beside each other, all ranks of all of them call this.
        """
        places = list(ranks)
        if not self._on_nccl:
            return self.own.among(places, purpose)
        made = {
            pipeline: dist.new_group([pipeline[place] for place in places], timeout=timeout)
            for pipeline in self.beside or (self.ranks,)
        }
        return made[self.ranks]

    @contextmanager
    def building(self) -> Iterator[None]:
        """Where all ranks prepare together: what fails on one of them ends it on all.

        Raises:
            RunFailure: another rank failed; says which and why.
        """
        try:
            yield
        except BaseException as error:
            before = self.own.meeting.failure()
            try:
                self.tell(error)
            finally:
                self.own.cut()
            told = isinstance(error, RuntimeError | RunFailure | ConnectionError)
            if told and before is not None and before not in str(error):
                raise RunFailure(f"{self.noun} {self.rank} cannot go on: {before}") from error
            error.add_note(f"(on {self.noun} {self.rank} of the pipeline, while it was made)")
            raise

    def tell(self, error: BaseException) -> None:
        """Say why this rank is going to let go of the others."""
        self.own.meeting.fail(_words(error))

    def recover(self) -> None:
        """Take back what `tell` said: this rank goes on."""
        self.own.meeting.recover()

    def explain(self, error: RuntimeError | RunFailure) -> RunFailure:
        """Say which rank it was that this error ended, and which other one failed before it."""
        named = isinstance(error, RunFailure)
        said = str(error) if named else f"{self.noun} {self.rank} failed: {describe_failure(error)}"
        cause = self.own.meeting.failure()
        return RunFailure(said if cause is None or cause in said else f"{said}; {cause}")

    def share(self, value: object, source: int) -> Any:
        """One rank's object, on all.

        Raises:
            RunFailure: another rank is gone.
        """
        with _named(self.rank, self.own.meeting), _without_warnings_of_trees():
            whole = self._whole
            if whole is not None:
                return own_groups.share(whole, value, source)
            shared = [value]
            dist.broadcast_object_list(shared, self.ranks[source], self.handle)
            return shared[0]

    def agree(self, source: int, make: Callable[[], T]) -> T:
        """What one rank makes, on all; or its error, on all.

        Raises:
            Refused: what that rank's `make` raised.
            RunFailure: another rank is gone.
        """
        told: tuple[Any, str | None] = (None, None)
        if source == self.rank:
            try:
                told = (make(), None)
            except SynthError as error:
                told = (None, str(error))
        made, refused = self.share(told, source)
        if refused is not None:
            raise Refused(refused)
        found: T = made
        return found

    def gather(self, value: object) -> list[Any]:
        """Every rank's object, in rank order, on all.

        Raises:
            RunFailure: another rank is gone.
        """
        with _named(self.rank, self.own.meeting), _without_warnings_of_trees():
            whole = self._whole
            if whole is not None:
                return own_groups.gather(whole, value)
            gathered: list[Any] = [None] * self.size
            dist.all_gather_object(gathered, value, self.handle)
            return gathered

    @property
    def _on_nccl(self) -> bool:
        return "nccl" in _backends(self.handle).values()

    @property
    def _whole(self) -> dist.ProcessGroupGloo | None:
        return None if self._on_nccl else self.own.among(range(self.size))


@contextmanager
def _named(rank: int, meeting: Meeting | None = None) -> Iterator[None]:
    """Say which rank it was that others were gone for, and why if they said so."""
    try:
        yield
    except RuntimeError as error:
        cause = meeting.failure() if meeting is not None else None
        if cause is not None:
            raise RunFailure(f"rank {rank} cannot go on: {cause}") from error
        raise RunFailure(
            f"rank {rank} failed where all ranks tell each other what they need to know before a "
            f"step: {describe_failure(error)}"
        ) from error


@contextmanager
def _without_warnings_of_trees() -> Iterator[None]:
    """What stages hand on is told as torch's tree, which warns of itself when it is unpickled."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*LeafSpec", FutureWarning)
        yield


def _words(error: BaseException) -> str:
    """An error of ours says what it is."""
    said = describe_failure(error)
    return said if isinstance(error, SynthError) else f"{type(error).__name__}: {said}"


def _backends(handle: dist.ProcessGroup | None) -> dict[str, str]:
    """The backend of each kind of device: of `cpu:gloo,cuda:nccl`, say."""
    parts = (part.split(":") for part in dist.get_backend_config(handle).split(","))
    return {device: backend for device, backend in parts}
