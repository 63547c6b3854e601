"""A check that ranks of a plan fit in the memory that a device has free."""

from collections.abc import Sequence

import torch

from synth.errors import SynthError
from synth.schedule.files.plan_file import Plan
from synth.units import format_bytes

from .control_group import free_in_control_group

_MEMINFO = "/proc/meminfo"


def check_fits(plan: Plan, ranks: Sequence[int], device: torch.device) -> None:
    """Refuse ranks whose planned peak is more than the device has free.

    Raises:
        SynthError: names the ranks and the bytes that they need.
    """
    free_bytes = available_bytes(device)
    if free_bytes is None:
        return
    needed = {rank: plan.claim.peak_bytes[rank] for rank in ranks}
    large = {rank: size for rank, size in needed.items() if size > free_bytes}
    if not large:
        return
    listed = [f"rank {rank} needs {format_bytes(size)}" for rank, size in large.items()]
    fitting = ",".join(str(rank) for rank in ranks if rank not in large)
    rest = f"; rehearse those that fit with --ranks {fitting}" if fitting else ""
    raise SynthError(
        f"{', '.join(listed)} by the plan, and {device} has {format_bytes(free_bytes)} free: "
        f"solve with a --mem-limit below that{rest}"
    )


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
