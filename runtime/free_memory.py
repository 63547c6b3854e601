"""The memory that can be allocated on a device now."""

import torch

from .control_group import free_in_control_group

_MEMINFO = "/proc/meminfo"


def available_bytes(device: torch.device) -> int | None:
    """The bytes that can be allocated on a device; None: unknown.

    On a CPU the machine may have more than the control group of a container allows: the smaller
    counts.
    """
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    known = [found for found in (_machine_bytes(), free_in_control_group()) if found is not None]
    return min(known, default=None)


def _machine_bytes() -> int | None:
    try:
        with open(_MEMINFO) as file:
            lines = dict(line.split(":", 1) for line in file)
        return int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None
