"""The memory limits of ranks, as `--mem-limit` and `--mem-reserve` and the profile say."""

from dataclasses import dataclass, replace

from synth.errors import SynthError
from synth.option_names import named
from synth.options.values import AUTO, LEAST, NONE, Limit
from synth.profile import Profile
from synth.units import format_bytes, format_bytes_both

# Share that `auto` reserves for the CUDA context (about 0.5 GB), the buffers of NCCL and cuBLAS
# (1 to 2 GB with a few communicators) and fragmentation (a few percent of what is held).
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

    Args:
        given: the limit; None: see `default_limit`.
        profile: the profile, which may have the capacity of its device.
        reserve: bytes to subtract; None: of `auto` a share, else nothing.

    Raises:
        SynthError: too few or too many sizes, or `auto` without a capacity; a reserve without a
            limit, or as large as one.
    """
    is_default, given = given is None, given or default_limit(profile)
    if reserve is not None and given in (NONE, LEAST):
        raise SynthError(
            "§mem_reserve is subtracted from a §mem_limit that is a size or auto; give one, "
            "for example §mem_limit 40GB"
        )
    if given == NONE:
        return MemoryLimit(None, named("no memory limit (§mem_limit sets one)"))
    if given == AUTO:
        found = _automatic(num_ranks, profile, reserve)
        way_out = named(" (§mem_limit none: no limit)") if is_default else ""
        return replace(found, explanation=f"{found.explanation}{way_out}")
    if isinstance(given, str):
        return MemoryLimit(None, "memory limit: minimized subject to the target")
    if len(given) == 1:
        given *= num_ranks
    if len(given) != num_ranks:
        raise SynthError(
            f"§mem_limit gives {len(given)} sizes for {num_ranks} ranks; give one, or one per rank"
        )
    if min(given) <= 0:
        raise SynthError("§mem_limit must be more than 0 bytes; give none for no limit")
    caps = _less(given, reserve)
    listed = [format_bytes_both(cap) for cap in dict.fromkeys(caps)]
    limit = f"{listed[0]} on every rank" if len(listed) == 1 else ", ".join(map(format_bytes, caps))
    return MemoryLimit(caps, f"memory limit {limit}{_reserve_words(reserve)}")


def default_limit(profile: Profile) -> Limit:
    """Return the limit where none is given: `auto` if the profile has a capacity, else `none`."""
    return NONE if profile.capacity_bytes is None else AUTO


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
