"""How many processors there are to run on."""

import os


def num_processors() -> int:
    """Those that this process may use; where the system does not tell (macOS), all of them."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
