"""The rendezvous of processes of one machine: in the launcher's memory and in a private folder.

torchrun's own rendezvous is a TCP store, which listens on all interfaces and unpickles what any
client leaves there. Here its engine, which is alone, has a store in its own memory, and the ranks
meet in a file of the run's folder (`run_folder`), which only its user may enter.
"""

from torch._C._distributed_c10d import HashStore
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    rendezvous_handler_registry,
)
from torch.distributed.elastic.rendezvous.api import RendezvousStoreInfo

BACKEND = "synth-one-machine"


class LocalRendezvous(RendezvousHandler):
    """The only node of a run."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._is_closed = False

    def get_backend(self) -> str:
        """Return the name of this kind."""
        return BACKEND

    @property
    def use_agent_store(self) -> bool:
        """False: ranks do not connect to the engine's store."""
        return False

    def next_rendezvous(self) -> RendezvousInfo:
        """Return the store of a start of the ranks; the address is never used."""
        return RendezvousInfo(HashStore(), 0, 1, RendezvousStoreInfo("localhost", 0))

    def is_closed(self) -> bool:
        """True once the run has ended."""
        return self._is_closed

    def set_closed(self) -> None:
        """End the run."""
        self._is_closed = True

    def num_nodes_waiting(self) -> int:
        """Return 0: no other node joins."""
        return 0

    def get_run_id(self) -> str:
        """Return the run's name."""
        return self._run_id

    def shutdown(self) -> bool:
        """Do nothing; nothing listens."""
        return True


def _make(parameters: RendezvousParameters) -> RendezvousHandler:
    return LocalRendezvous(parameters.run_id)


rendezvous_handler_registry.register(BACKEND, _make)
