"""Reading `--mem-limit` and `--mem-reserve`, against the profile."""

from dataclasses import dataclass

from synth.errors import SynthError
from synth.option_names import named
from synth.options.keywords import word
from synth.profile import Profile
from synth.units import format_bytes, format_bytes_both, parse_bytes

LEAST = "min"

# Share that `auto` reserves for the CUDA context, communicators' buffers and fragmentation.
RESERVED_SHARE = 0.1


@dataclass(frozen=True)
class MemoryLimit:
    """Memory limits by rank (None: no limit), and a sentence that explains them."""

    caps_bytes: tuple[int, ...] | None
    explanation: str


def read_limit(
    text: str | None, num_ranks: int, profile: Profile, reserve: str | None = None
) -> MemoryLimit:
    """Read one size for all ranks, one per rank separated by commas, `auto`, `min` or nothing.

    The limits are these sizes less the reserve, which is a size.

    Raises:
        SynthError: sizes without a clear unit, too few or too many, or `auto` without a capacity; a
            reserve without a limit, or as large as one.
    """
    if reserve is not None and (text is None or is_least(text)):
        raise SynthError(
            "§mem_reserve is subtracted from a §mem_limit that is a size or auto; give one, "
            "for example §mem_limit 40GB"
        )
    if text is None:
        return MemoryLimit(None, named("no memory limit (§mem_limit sets one)"))
    reserved = None if reserve is None else parse_bytes(reserve)
    if word(text) == "auto":
        return _automatic(num_ranks, profile, reserved)
    if is_least(text):
        return MemoryLimit(None, "memory limit: minimized subject to the target")
    given = tuple(parse_bytes(part) for part in text.split(","))
    if len(given) == 1:
        given *= num_ranks
    if len(given) != num_ranks:
        raise SynthError(
            f"§mem_limit gives {len(given)} sizes for {num_ranks} ranks; give one, or one per rank"
        )
    if min(given) <= 0:
        raise SynthError("§mem_limit must be more than 0 bytes; leave it out for no limit")
    caps = _less(given, reserved)
    listed = [format_bytes_both(cap) for cap in dict.fromkeys(caps)]
    limit = f"{listed[0]} on every rank" if len(listed) == 1 else ", ".join(map(format_bytes, caps))
    return MemoryLimit(caps, f"memory limit {limit}{_reserve_words(reserved)}")


def _less(sizes: tuple[int, ...], reserved: int | None) -> tuple[int, ...]:
    """Subtract the reserve from each size.

    Raises:
        SynthError: nothing is left.
    """
    caps = tuple(size - (reserved or 0) for size in sizes)
    if min(caps) <= 0:
        raise SynthError(
            f"§mem_reserve {format_bytes_both(reserved or 0)} leaves nothing of a limit of "
            f"{format_bytes_both(min(sizes))}; reserve less"
        )
    return caps


def _reserve_words(reserved: int | None) -> str:
    if reserved is None:
        return ""
    return (
        f", after a reserve of {format_bytes(reserved)} was subtracted; all limits below and in "
        f"files are without the reserve"
    )


def _automatic(num_ranks: int, profile: Profile, reserved: int | None) -> MemoryLimit:
    capacity = profile.capacity_bytes
    if capacity is None:
        raise SynthError(
            f"§mem_limit auto: profile {profile.name} does not say how much memory its device "
            f"has; give a size, for example 40GB"
        )
    if reserved is None:
        cap, less = round(capacity * (1 - RESERVED_SHARE)), f"{RESERVED_SHARE:.0%}"
    else:
        (cap,), less = _less((capacity,), reserved), format_bytes(reserved)
    return MemoryLimit(
        (cap,) * num_ranks,
        f"memory limit {format_bytes_both(cap)} on every rank: {format_bytes(capacity)} of "
        f"{profile.provenance.device} less {less} for context, communicators and "
        f"fragmentation",
    )


def is_least(text: str | None) -> bool:
    """Return True if the memory limit is to be minimized subject to a target."""
    return text is not None and word(text) == LEAST
