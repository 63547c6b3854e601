"""Bytes and times: parsing what users type, and formatting what they read."""

import re

from synth.errors import SynthError

_FACTORS: dict[str, int] = {
    "B": 1,
    **{f"{p}B": int(10 ** (3 * i + 3)) for i, p in enumerate("KMGT")},
    **{f"{p}IB": 1 << (10 * i + 10) for i, p in enumerate("KMGT")},
}

# A pebibyte, and 35 years in microseconds: sums of numbers up to here stay exact in 64 bits.
MOST_SUMMABLE = 1 << 50

# A week in microseconds: beyond any op or transfer, and small enough for every sum to stay exact.
MOST_US = 6.048e11

_MOST_SECONDS = MOST_SUMMABLE / 1e6

# The most characters of a typed text that a message shows.
_SHOWN = 40


def parse_bytes(text: str) -> int:
    """Read a size: `40GB` is 40·10⁹ bytes, `40GiB` is 40·2³⁰; any case, decimals allowed.

    But for `40Gb`: after a capital prefix a `b` is a bit, as in bandwidths.

    Raises:
        SynthError: no unit, or one with two readings such as `40G` and `40Gb`; both readings are
            spelled out. Or more than a pebibyte.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", text)
    if match is None:
        raise SynthError(f"size {text!r} is not understood; write for example 40GB or 37.5GiB")
    number, unit = match[1], match[2].upper()
    if unit in _FACTORS:
        if match[2].endswith("b") and not match[2].islower():
            raise SynthError(_two_readings(text, number, f"{match[2][:-1]}B"))
        size = float(number) * _FACTORS[unit]
        if size > MOST_SUMMABLE:
            raise SynthError(f"size {shown(text)} is more than 1024TiB; give at most that")
        return round(size)
    prefix = unit if unit in ("K", "M", "G", "T") else "G"
    if unit in ("", "K", "M", "G", "T"):
        raise SynthError(
            f"size {text!r} has no clear unit; write {number}{prefix}B "
            f"(= {float(number) * _FACTORS[prefix + 'B']:,.0f} bytes) or {number}{prefix}iB "
            f"(= {float(number) * _FACTORS[prefix + 'IB']:,.0f} bytes)"
        )
    raise SynthError(f"unit {match[2]!r} in size {text!r} is unknown; write for example 40GB")


def _two_readings(text: str, number: str, unit: str) -> str:
    """Return why a size with a `b` is refused, with its readings as bytes and as bits."""
    size = float(number) * _FACTORS[unit.upper()]
    return (
        f"size {shown(text)} may be of bits or bytes; write {number}{unit} (= {size:,.0f} bytes) "
        f"or {float(number) / 8:g}{unit} (= {size:,.0f} bits)"
    )


def counted(number: int, noun: str) -> str:
    """Show a count with its noun, which is given in the singular: `1 layer`, `2 layers`."""
    ending = "es" if noun.endswith(("s", "x", "ch", "sh")) else "s"
    return f"{number} {noun}" if number == 1 else f"{number} {noun}{ending}"


def format_bytes(num_bytes: float) -> str:
    """Show a size in the decimal unit that fits, three or four figures: `3.142 GB`."""
    value = float(num_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if abs(value) < 1000:
            return f"{value:.0f} B" if unit == "B" else f"{value:.4g} {unit}"
        value /= 1000
    return f"{value:.4g} TB"


def format_bytes_both(num_bytes: float) -> str:
    """Show a size in both families of units, so that no one has to guess: `40 GB (37.25 GiB)`."""
    value, unit = float(num_bytes), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{format_bytes(num_bytes)} ({value:.4g} {unit})"


def format_us(time_us: float) -> str:
    """Show a duration given in microseconds: `812 µs`, `18.52 ms`, `1.457 s`."""
    if abs(time_us) < 1000:
        return f"{time_us:.0f} µs"
    if abs(time_us) < 1_000_000:
        return f"{time_us / 1000:.4g} ms"
    return f"{time_us / 1_000_000:.4g} s"


def parse_seconds(text: str) -> float:
    """Read a duration: `60`, `60s`, `2m`, `500ms`, `20us`.

    Raises:
        SynthError: not a number with one of these units, or more than 35 years.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(us|µs|μs|ms|s|m|min|h)?\s*", text)
    if match is None:
        raise SynthError(f"duration {text!r} is not understood; write for example 60s or 2m")
    factors = {"ms": 1e-3, "s": 1, "m": 60, "min": 60, "h": 3600, None: 1}
    factor = factors.get(match[2], 1e-6)
    seconds = float(match[1]) * factor
    if seconds > _MOST_SECONDS:
        raise SynthError(f"duration {shown(text)} is more than 35 years; give at most 300000h")
    return seconds


def parse_bandwidth(text: str) -> float:
    """Read bytes per second: `25GB/s`, or bits as networks count them, `200Gb/s` or `200Gbps`.

    A `B` is a byte and a `b` a bit, k, M, G and T are thousands, and Ki, Mi, … 1024.

    Raises:
        SynthError: something else, or nothing per second.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kKMGT]?i?)(B|b|bit)(?:/s|ps)\s*", text)
    if match is None or match[2] == "i" or not float(match[1]):
        raise SynthError(
            f"bandwidth {shown(text)} is not understood; write for example 25GB/s (bytes) or "
            f"200Gb/s (bits)"
        )
    factor = _FACTORS[f"{match[2].upper()}B"]
    return float(match[1]) * factor / (1 if match[3] == "B" else 8)


def parse_fraction(text: str) -> float:
    """Read a share: `0.5%` and `0.005` are the same.

    Raises:
        SynthError: not a number between 0 and 1 (0% and 100%).
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(%?)\s*", text)
    value = float(match[1]) / (100 if match[2] else 1) if match else -1.0
    if not 0 <= value <= 1:
        raise SynthError(f"share {text!r} is not understood; write for example 0.5% or 0.005")
    return value


def shown(given: object) -> str:
    """The typed text in quotes, or another value; shortened to its beginning if it is long."""
    if isinstance(given, str):
        return repr(given) if len(given) <= _SHOWN else f"{given[:_SHOWN]!r}…"
    text = repr(given)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
