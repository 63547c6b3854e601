"""The processors of this process, and of the ranks that it launches."""

import os


def num_processors() -> int:
    """The processors that this process may use; all of them if the system does not say (macOS)."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def limit_ranks() -> None:
    """Let libraries of ranks begin with one thread and without warnings, if the user says nothing.

    Ranks may be forked from this process. Therefore this precedes its imports of numpy and torch,
    which read these variables. A rank of torchrun has them from there.
    """
    if "RANK" in os.environ:
        return
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
