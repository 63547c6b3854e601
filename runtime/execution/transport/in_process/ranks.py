"""Ranks as threads of one process: a pipeline without torch.distributed, to try a schedule out.

    def train(group: InProcessGroup) -> Tensor | None:
        pipeline = Pipeline(schedule, stages_of(group.rank), group=group, loss=mse_loss)
        return pipeline.step(pipeline.split(inputs, targets=targets))

    losses = run_ranks(schedule.num_ranks, train)

Transfers start, wait and end as on gloo, but they expose more errors: a send's tensors are read
only when the receive is posted, a receive's buffers are filled only by `wait`, and the two ends
must name the same value. All ranks draw from the process's one generator, so R may draw other
random numbers than its F did: do not combine R with dropout here. Warning filters belong to the
process, too. Autocast and grad mode belong to a thread and are set within the function.
"""

import pickle
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Self, TypeVar

import torch
from torch._C._distributed_c10d import HashStore

from synth.errors import SynthError

from ..rank_group import RankGroup, named_failure, without_warnings_of_trees
from ..rendezvous import Rendezvous
from .channels import InProcessChannels
from .collectives import InProcessCollectives
from .exchange import Exchange, Exchanges, Parts

T = TypeVar("T")

BACKEND = "in-process"


class _Ranks:
    """The exchanges and the store that the threads of one group share."""

    def __init__(self) -> None:
        self.exchanges = Exchanges()
        self.store = HashStore()
        self.was_aborted = False


class InProcessRanks:
    """All ranks of this process, and all groups of some of them."""

    def __init__(self, num_ranks: int, timeout_s: float, eager_bytes: int) -> None:
        self.num_ranks = num_ranks
        self.timeout_s = timeout_s
        self.eager_bytes = eager_bytes
        self._lock = threading.Lock()
        self._made: dict[tuple[tuple[int, ...], int], _Ranks] = {}
        self._counts: Counter[tuple[int, tuple[int, ...]]] = Counter()
        self._ended: dict[int, str | None] = {}

    def join(self, rank: int, ranks: tuple[int, ...]) -> _Ranks:
        """Return a group's state; a rank's n-th call joins the n-th call of the others."""
        with self._lock:
            number = self._counts[rank, ranks]
            self._counts[rank, ranks] += 1
            shared = self._made.setdefault((ranks, number), _Ranks())
            for ended in set(ranks) & self._ended.keys():
                self._tell(shared, ranks, ended)
            return shared

    def end(self, rank: int, cause: str | None) -> None:
        """Note that a rank's thread has ended, because of a failure if there is a cause."""
        with self._lock:
            self._ended[rank] = cause
            for (ranks, _), shared in self._made.items():
                if rank in ranks:
                    self._tell(shared, ranks, rank)

    def check_nothing_left(self) -> None:
        """Refuse transfers that were not received, and collectives that some ranks did not call."""
        whole = [shared for shared in self._made.values() if not shared.was_aborted]
        left = [place for shared in whole for place in shared.exchanges.left_behind()]
        if left:
            raise SynthError(
                f"all ranks have ended, but {len(left)} transfers or collectives have not: "
                f"{', '.join(sorted(map(str, left))[:5])}"
            )

    def _tell(self, shared: _Ranks, ranks: tuple[int, ...], ended: int) -> None:
        index, cause = ranks.index(ended), self._ended[ended]
        if cause is not None:
            Rendezvous(shared.store, index, self.timeout_s).fail(cause)
        shared.exchanges.leave(index)


class InProcessGroup(RankGroup):
    """One rank's handle of ranks that are threads of this process, made by `run_ranks`."""

    def __init__(
        self,
        process: InProcessRanks,
        own: int,
        ranks: tuple[int, ...],
        timeout_s: float,
        noun: str = "rank",
    ) -> None:
        """Join a group of some of the process's ranks; `own` is this rank of the process."""
        self._process, self._own = process, own
        self.ranks, self.rank, self.noun = ranks, ranks.index(own), noun
        self._timeout_s = timeout_s
        self._shared = process.join(own, ranks)
        self._rendezvous = Rendezvous(self._shared.store, self.rank, timeout_s, noun)
        self._others: list[Callable[[], None]] = []

    def renewed(self, timeout_s: float, noun: str = "rank") -> Self:
        """Return a group of the same ranks for one pipeline alone; all of them call this."""
        return type(self)(self._process, self._own, self.ranks, timeout_s, noun)

    def part(self, ranks: Iterable[int]) -> Self:
        """Return a group of some of these ranks; all of those call this."""
        chosen = tuple(self.ranks[rank] for rank in ranks)
        return type(self)(self._process, self._own, chosen, self._timeout_s, self.noun)

    @property
    def rendezvous(self) -> Rendezvous:
        """The rendezvous of the ranks."""
        return self._rendezvous

    def channels(self) -> InProcessChannels:
        """Open the channels of this rank."""
        return InProcessChannels(
            self._shared.exchanges,
            self.rank,
            self._timeout_s,
            self._process.eager_bytes,
            self.abort,
        )

    def backend(self, device: torch.device) -> str:
        """`in-process`, for any device."""
        return BACKEND

    def on(self, device: torch.device) -> Self:
        """Return this group, which moves tensors of any device."""
        return self

    def subgroup(
        self, ranks: Iterable[int], timeout: timedelta | None = None, purpose: str = ""
    ) -> InProcessCollectives | None:
        """Return the collectives of some ranks; None: this rank is not among them."""
        named = tuple(ranks)
        if self.rank not in named:
            return None
        limit_s = self._timeout_s if timeout is None else timeout.total_seconds()
        return InProcessCollectives(self._shared.exchanges, named, self.rank, limit_s, purpose)

    def share(self, value: object, source: int) -> Any:
        """Return one rank's object on all ranks; each other rank gets a copy."""
        given = pickle.dumps(value) if self.rank == source else None
        return pickle.loads(self._all_told("share", given)[source])

    def gather(self, value: object) -> list[Any]:
        """Return every rank's object, in rank order, on all ranks, as copies."""
        told = self._all_told("gather", pickle.dumps(value))
        return [pickle.loads(told[rank]) for rank in range(self.size)]

    def on_abort(self, abort: Callable[[], None]) -> None:
        """Register a function that closes other connections before this rank disconnects."""
        self._others.append(abort)

    def abort(self) -> None:
        """Disconnect from all other ranks: ranks that wait for this one fail."""
        for abort in self._others:
            abort()
        self._shared.was_aborted = True
        self._shared.exchanges.leave(self.rank)

    def close(self) -> None:
        """Do nothing; no resources need to be freed."""

    def _all_told(self, place: Hashable, given: bytes | None) -> Parts:
        ranks = range(self.size)
        with named_failure(self.rank, self.rendezvous):
            exchange: Exchange = self._shared.exchanges.join(
                place, ranks, self.rank, given, lambda parts: {r: dict(parts) for r in parts}
            )
            told: Parts = exchange.wait(self.rank, self._timeout_s)
        return told


def run_ranks(
    num_ranks: int,
    function: Callable[[InProcessGroup], T],
    *,
    timeout_s: float = 300.0,
    eager_bytes: int = 0,
) -> list[T]:
    """Run a function on every rank, one thread each, and return the results in rank order.

    Kernels use one processor meanwhile, as with one process per rank on a full machine.

    Args:
        num_ranks: the number of threads.
        function: called with its rank's group, for `Pipeline(group=…)`.
        timeout_s: the longest that ranks wait for each other.
        eager_bytes: messages of at most this size are copied when their send starts, and do not
            wait for their receive; larger ones do.

    Raises:
        BaseException: the error of the rank that failed first; the others have ended too.
        SynthError: all ranks returned, but a transfer was not received.
    """
    process = InProcessRanks(num_ranks, timeout_s, eager_bytes)
    results: dict[int, T] = {}
    failures: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            group = InProcessGroup(process, rank, tuple(range(num_ranks)), timeout_s)
            results[rank] = function(group)
        except BaseException as error:
            error.add_note(f"(on rank {rank}, a thread of this process)")
            failures.append(error)
            process.end(rank, f"{type(error).__name__}: {error}")
        else:
            process.end(rank, None)

    threads = [
        threading.Thread(target=run, args=(rank,), name=f"rank {rank}", daemon=True)
        for rank in range(num_ranks)
    ]
    with _one_thread_for_kernels(), without_warnings_of_trees():
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        except BaseException as error:  # interrupted while ranks wait for each other
            for rank in range(num_ranks):
                process.end(rank, type(error).__name__)
            raise
    if failures:
        raise failures[0]
    process.check_nothing_left()
    return [results[rank] for rank in range(num_ranks)]


@contextmanager
def _one_thread_for_kernels() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
