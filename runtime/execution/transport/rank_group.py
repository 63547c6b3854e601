"""The ranks of one pipeline over any transport, and their messages before and after a step."""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Self, TypeVar

import torch

from synth.errors import RunFailure, SynthError

from ..base.failure import describe_failure, tells_of_a_closed_connection
from .rendezvous import Rendezvous

T = TypeVar("T")


class Refused(SynthError):
    """One rank refused an input; all ranks know it, and nothing has begun."""


class RankGroup(ABC):
    """One rank's handle of its pipeline's ranks."""

    ranks: tuple[int, ...]
    """The global process, or the thread, of each rank."""
    rank: int
    """This rank."""
    noun: str
    """The word for a rank in messages."""

    @property
    @abstractmethod
    def rendezvous(self) -> Rendezvous:
        """The rendezvous of the ranks, usable before they are connected."""

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.ranks)

    @abstractmethod
    def backend(self, device: torch.device) -> str:
        """Name the transport of a device's tensors."""

    @abstractmethod
    def on(self, device: torch.device) -> Self:
        """Return a group of the same ranks whose subgroups move tensors of this device."""

    @abstractmethod
    def subgroup(
        self, ranks: Iterable[int], timeout: timedelta | None = None, purpose: str = ""
    ) -> Any:
        """Make a group of some of the pipeline's ranks; all of them call this, in the same order.

        Each purpose has a group of its own.
        """

    @abstractmethod
    def share(self, value: object, source: int) -> Any:
        """Return one rank's object on all ranks.

        Raises:
            RunFailure: another rank is gone.
        """

    @abstractmethod
    def gather(self, value: object) -> list[Any]:
        """Return every rank's object, in rank order, on all ranks.

        Raises:
            RunFailure: another rank is gone.
        """

    @abstractmethod
    def on_abort(self, abort: Callable[[], None]) -> None:
        """Register a function that closes other connections before this rank disconnects."""

    @abstractmethod
    def abort(self) -> None:
        """Disconnect from all other ranks: ranks that wait for this one fail."""

    @abstractmethod
    def close(self) -> None:
        """Free the connections between the ranks; all of them call this."""

    @contextmanager
    def building(self) -> Iterator[None]:
        """Guard a preparation by all ranks: a failure on one of them ends it on all.

        Raises:
            RunFailure: another rank failed; says which and why.
        """
        try:
            yield
        except BaseException as error:
            before = self.rendezvous.cause_of(error)
            try:
                self.announce(error)
            finally:
                self.abort()
            told = isinstance(error, RuntimeError | RunFailure | ConnectionError)
            if told and before is not None and before not in str(error):
                raise RunFailure(f"{self.noun} {self.rank} cannot continue: {before}") from error
            error.add_note(f"(on {self.noun} {self.rank} of the pipeline, while it was made)")
            raise

    def announce(self, error: BaseException) -> None:
        """Announce why this rank is about to disconnect."""
        ended = self.rendezvous.ended() if tells_of_a_closed_connection(error) else None
        if ended is None:
            self.rendezvous.fail(_words(error))
        else:
            self.rendezvous.tell(ended)  # on behalf of the rank that cannot any more

    def withdraw(self) -> None:
        """Withdraw the announced failure, because this rank continues."""
        self.rendezvous.withdraw()

    def explain(self, error: RuntimeError | RunFailure) -> RunFailure:
        """Add this rank's name to an error, and the rank that failed before it, if any."""
        named = isinstance(error, RunFailure)
        said = str(error) if named else f"{self.noun} {self.rank} failed: {describe_failure(error)}"
        cause = self.rendezvous.cause_of(error)
        return RunFailure(said if cause is None or cause in said else f"{said}; {cause}")

    def agree(self, source: int, make: Callable[[], T]) -> T:
        """Run `make` on one rank, and return its result on all; or raise its error on all.

        Raises:
            Refused: that rank's `make` raised an error.
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


@contextmanager
def named_failure(
    rank: int,
    rendezvous: Rendezvous | None = None,
    where: str = "where all ranks tell each other what they need to know before a step",
) -> Iterator[None]:
    """Add this rank's name to an error in the block, and the cause that another rank announced."""
    try:
        yield
    except RuntimeError as error:
        cause = rendezvous.cause_of(error) if rendezvous is not None else None
        if cause is not None:
            raise RunFailure(f"rank {rank} cannot continue: {cause}") from error
        raise RunFailure(f"rank {rank} failed {where}: {describe_failure(error)}") from error


@contextmanager
def without_warnings_of_trees() -> Iterator[None]:
    """Silence torch's warning when it unpickles the tree of a stage's outputs."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*LeafSpec", FutureWarning)
        yield


def _words(error: BaseException) -> str:
    """Return an error's message, with its type unless it is one of ours."""
    said, kind = describe_failure(error), type(error).__name__
    return said if isinstance(error, SynthError) or said.startswith(kind) else f"{kind}: {said}"
