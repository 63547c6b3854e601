"""The memory limits of ranks, as `--mem-limit` and `--mem-reserve` and the profile say."""

from dataclasses import dataclass

from synth.errors import SynthError
from synth.option_names import named
from synth.options.values import AUTO, LEAST, Limit
from synth.profile import Profile
from synth.units import format_bytes, format_bytes_both

# Share that `auto` reserves for the CUDA context, communicators' buffers and fragmentation.
RESERVED_SHARE = 0.1


@dataclass(frozen=True)
class MemoryLimit:
    """Memory limits by rank (None: no limit), and a sentence that explains them."""

    caps_bytes: tuple[int, ...] | None
    explanation: str


def read_limit(
    given: Limit | None, num_ranks: int, profile: Profile, reserve: int | None = None
) -> MemoryLimit:
    """Return the limit of each rank, in bytes: the given ones less the reserve.

    Raises:
        SynthError: too few or too many sizes, or `auto` without a capacity; a reserve without a
            limit, or as large as one.
    """
    if reserve is not None and given in (None, LEAST):
        raise SynthError(
            "§mem_reserve is subtracted from a §mem_limit that is a size or auto; give one, "
            "for example §mem_limit 40GB"
        )
    if given is None:
        return MemoryLimit(None, named("no memory limit (§mem_limit sets one)"))
    if given == AUTO:
        return _automatic(num_ranks, profile, reserve)
    if isinstance(given, str):
        return MemoryLimit(None, "memory limit: minimized subject to the target")
    if len(given) == 1:
        given *= num_ranks
    if len(given) != num_ranks:
        raise SynthError(
            f"§mem_limit gives {len(given)} sizes for {num_ranks} ranks; give one, or one per rank"
        )
    if min(given) <= 0:
        raise SynthError("§mem_limit must be more than 0 bytes; leave it out for no limit")
    caps = _less(given, reserve)
    listed = [format_bytes_both(cap) for cap in dict.fromkeys(caps)]
    limit = f"{listed[0]} on every rank" if len(listed) == 1 else ", ".join(map(format_bytes, caps))
    return MemoryLimit(caps, f"memory limit {limit}{_reserve_words(reserve)}")


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
