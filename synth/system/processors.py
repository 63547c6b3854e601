"""The number of processors."""

import os


def num_processors() -> int:
    """The processors that this process may use; all of them if the system does not say (macOS)."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
