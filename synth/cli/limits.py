"""Reading `--mem-limit` and `--partition`: what is typed, against what the profile says."""

from dataclasses import dataclass

from synth.errors import SynthError
from synth.profile import Profile
from synth.units import format_bytes, format_bytes_both, parse_bytes

# What `auto` leaves to others: the CUDA context, communicators' buffers, fragmentation.
RESERVED_SHARE = 0.1


@dataclass(frozen=True)
class MemoryLimit:
    """The caps, rank by rank (none: no limit), and the sentence that says so."""

    caps_bytes: tuple[int, ...] | None
    explanation: str


def read_limit(text: str | None, num_ranks: int, profile: Profile) -> MemoryLimit:
    """Read one size for all ranks, one per rank separated by commas, `auto`, or nothing.

    Raises:
        SynthError: sizes without a clear unit, too few or too many, or `auto` without a capacity.
    """
    if text is None:
        return MemoryLimit(None, "no memory limit: give --mem-limit to keep one")
    if text.strip().lower() == "auto":
        return _automatic(num_ranks, profile)
    caps = tuple(parse_bytes(part) for part in text.split(","))
    if len(caps) == 1:
        caps *= num_ranks
    if len(caps) != num_ranks:
        raise SynthError(
            f"--mem-limit gives {len(caps)} sizes for {num_ranks} ranks; give one, or one per rank"
        )
    if min(caps) <= 0:
        raise SynthError("--mem-limit must be more than 0 bytes; leave it out for no limit")
    listed = [format_bytes_both(cap) for cap in dict.fromkeys(caps)]
    shown = f"{listed[0]} on every rank" if len(listed) == 1 else ", ".join(map(format_bytes, caps))
    return MemoryLimit(caps, f"memory limit {shown}")


def _automatic(num_ranks: int, profile: Profile) -> MemoryLimit:
    capacity = profile.capacity_bytes
    if capacity is None:
        raise SynthError(
            f"--mem-limit auto: profile {profile.name} does not say how much memory its device "
            f"has; give a size, for example 40GB"
        )
    cap = round(capacity * (1 - RESERVED_SHARE))
    return MemoryLimit(
        (cap,) * num_ranks,
        f"memory limit {format_bytes_both(cap)} on every rank: {format_bytes(capacity)} of "
        f"{profile.provenance.device} less {RESERVED_SHARE:.0%} for context, communicators and "
        f"fragmentation",
    )


def read_partition(text: str, num_ranks: int) -> tuple[int, ...] | None:
    """Read the layers of each stage, `3,3,2`; none for `auto`.

    Raises:
        SynthError: not one whole number above 0 per rank.
    """
    if text.strip().lower() == "auto":
        return None
    try:
        sizes = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise SynthError(
            f"--partition {text!r} is not understood; write auto, or layers per stage such as 3,3,2"
        ) from None
    if len(sizes) != num_ranks:
        raise SynthError(
            f"--partition gives {len(sizes)} stages for {num_ranks} ranks; give one size per rank"
        )
    if min(sizes) < 1:
        stage = next(stage for stage, size in enumerate(sizes) if size < 1)
        raise SynthError(
            f"--partition gives stage {stage} {sizes[stage]} layers; every stage needs at least one"
        )
    return sizes
