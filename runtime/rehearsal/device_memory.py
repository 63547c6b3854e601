"""A check that ranks of a plan fit in the memory that a device has free."""

from collections.abc import Sequence

import torch

from synth.errors import SynthError
from synth.schedule.files.plan_file import Plan
from synth.units import format_bytes

from ..free_memory import available_bytes


def check_fits(plan: Plan, ranks: Sequence[int], device: torch.device) -> None:
    """Refuse ranks whose planned peak is more than the device has free."""
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
