"""The rendezvous of the ranks of a pipeline, and their announcements of failures to each other.

Gloo's groups, and torch.distributed's store below them, wait until all ranks have come or the time
limit has passed. Ranks that meet here first also notice if one of them has failed, or if its
process has ended on this machine, as after SIGKILL.
"""

import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress

from torch._C._distributed_c10d import Store

from synth.errors import RunFailure

from ...processes import ProcessIdentity
from ..base.failure import tells_of_a_closed_connection

_FAILED = "failed"
_SHORTEST_S, _LONGEST_S = 0.001, 0.05
# The time between two looks at the processes of ranks that have not come.
_LOOK_S = 0.25


class Rendezvous:
    """One rank's view of a store that all ranks of one pipeline, and only they, write to."""

    def __init__(
        self,
        store: Store,
        rank: int,
        timeout_s: float,
        noun: str = "rank",
        neighbours: Mapping[int, ProcessIdentity] | None = None,
    ) -> None:
        """Prepare to meet.

        Args:
            store: that of this pipeline alone.
            rank: this rank of the pipeline.
            timeout_s: the longest that ranks wait for each other.
            noun: the word for a rank in messages.
            neighbours: the processes of other ranks that can be seen from here; None: none.
        """
        self._neighbours = neighbours or {}
        self.store = store
        self.rank = rank
        self.timeout_s = timeout_s
        self.name, self._noun = f"{noun} {rank}", noun
        self._failed = f"{self.name} failed"
        self._told = ""

    def meet(self, where: str, ranks: Iterable[int], message: str = "") -> list[str]:
        """Wait until all ranks have come to a place; return their messages in order of `ranks`.

        Raises:
            RunFailure: one of the pipeline's ranks has failed, or did not come in time.
        """
        keys = {rank: f"{where}-{rank}" for rank in ranks}
        self.store.set(keys[self.rank], message)
        began_s, pause_s = time.monotonic(), _SHORTEST_S
        until, next_look = began_s + self.timeout_s, began_s + _LOOK_S
        while not self.store.check(list(keys.values())):
            looks_at_processes = time.monotonic() > next_look
            cause = self._cause(keys if looks_at_processes else ())
            if looks_at_processes:
                next_look = time.monotonic() + _LOOK_S
            # A rank that failed after this place had come here, so all may have come by now.
            if cause is not None and self._missing(keys):
                self.tell(cause)  # nobody has yet, if this rank found an ended process
                raise RunFailure(f"{self.name} cannot continue: {cause}")
            missing = self._missing(keys) if time.monotonic() > until else []
            if missing:  # empty if the last ranks have just come
                raise RunFailure(
                    f"{self.name} waited {self.timeout_s:g} s for {self._noun}"
                    f"{'s' * (len(missing) > 1)} {', '.join(map(str, missing))}; every rank of "
                    f"the group makes the pipeline at the same time, else raise timeout_s"
                )
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_S)
        return [found.decode() for found in self.store.multi_get(list(keys.values()))]

    def _missing(self, keys: Mapping[int, str]) -> list[int]:
        return [rank for rank, key in keys.items() if not self.store.check([key])]

    def fail(self, cause: str) -> None:
        """Announce to all ranks that this one failed; the first announced cause stands."""
        report = cause if cause.startswith(self._failed) else f"{self._failed}: {cause}"
        self._told = self.tell(report)

    def tell(self, report: str) -> str:
        """Announce a failure to all ranks unless there is one; return the words as encoded."""
        report = report.encode(errors="replace").decode()  # a path may be no UTF-8
        with suppress(RuntimeError):  # the process that holds the store is gone
            self.store.compare_set(_FAILED, "", report)
        return report

    def withdraw(self) -> None:
        """Withdraw this rank's announcement, because it did not end."""
        if self._told:
            with suppress(RuntimeError):
                self.store.compare_set(_FAILED, self._told, "")
            self._told = ""

    def failure(self) -> str | None:
        """The announcement of another rank that failed first; None: no other rank failed.

        This asks the store, which answers at once or is gone. A store on a host that hangs is
        waited for without limit, because torch has none for these calls.
        """
        with suppress(RuntimeError):
            if self.store.check([_FAILED]):
                report = self.store.get(_FAILED).decode()
                return None if not report or report.startswith(self._failed) else report
        return None

    def ended(self, ranks: Collection[int] | None = None) -> str | None:
        """Name a rank of this machine whose process has ended; None: there is none.

        Args:
            ranks: those to look at; None: all.
        """
        for rank, process in self._neighbours.items():
            if (ranks is None or rank in ranks) and process.has_ended:
                return f"{self._noun} {rank} is gone: its process {process.pid} has ended"
        return None

    def cause_of(self, error: BaseException) -> str | None:
        """The failure of another rank that an error is a consequence of; None: it is none.

        A rank that fails announces it before it disconnects. If a connection is closed without
        that, its process has ended.
        """
        return self._cause(None if tells_of_a_closed_connection(error) else ())

    def _cause(self, seen: Collection[int] | None) -> str | None:
        """Return what another rank announced, or else that the process of one of `seen` has ended.

        The processes are looked at first: a rank that has failed announces it before it ends.
        """
        ended = self.ended(seen)
        return self.failure() or ended
