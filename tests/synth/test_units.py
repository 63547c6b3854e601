"""Sizes and times, parsed and formatted."""

import pytest

from synth.errors import SynthError
from synth.units import (
    MOST_SUMMABLE,
    counted,
    format_bytes,
    format_bytes_both,
    format_us,
    parse_bandwidth,
    parse_bytes,
    parse_fraction,
    parse_seconds,
)


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("40GB", 40 * 10**9),
        ("40GiB", 40 * 2**30),
        ("40gib", 40 * 2**30),
        ("1.5 MB", 1_500_000),
        ("0.5KiB", 512),
        ("123B", 123),
        ("2tb", 2 * 10**12),
        (" 80 GB ", 80 * 10**9),
    ],
)
def test_sizes_with_a_clear_unit_are_read(text: str, num_bytes: int) -> None:
    assert parse_bytes(text) == num_bytes


@pytest.mark.parametrize("text", ["40", "40G", "40g"])
def test_a_size_with_two_readings_is_refused_with_both(text: str) -> None:
    with pytest.raises(SynthError) as raised:
        parse_bytes(text)
    assert "40GB (= 40,000,000,000 bytes)" in str(raised.value)
    assert "40GiB (= 42,949,672,960 bytes)" in str(raised.value)


@pytest.mark.parametrize(
    ("text", "in_bytes", "in_bits"),
    [
        ("40Gb", "40GB (= 40,000,000,000 bytes)", "5GB (= 40,000,000,000 bits)"),
        ("1Kib", "1KiB (= 1,024 bytes)", "0.125KiB (= 1,024 bits)"),
        ("1GIb", "1GIB (= 1,073,741,824 bytes)", "0.125GIB (= 1,073,741,824 bits)"),
    ],
)
def test_a_size_that_may_be_of_bits_is_refused_with_both_readings(
    text: str, in_bytes: str, in_bits: str
) -> None:
    with pytest.raises(SynthError, match="may be of bits or bytes") as raised:
        parse_bytes(text)
    assert in_bytes in str(raised.value) and in_bits in str(raised.value)


@pytest.mark.parametrize("text", ["", "GB", "-4GB", "4 0GB", "forty", "40XB", "1e9B"])
def test_a_size_that_is_none_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(SynthError, match="40GB"):
        parse_bytes(text)


@pytest.mark.parametrize("text", ["9" * 400 + "GB", "9999999999TB", "1024.1TiB"])
def test_a_size_too_large_to_be_added_up_is_refused_with_the_largest(text: str) -> None:
    with pytest.raises(SynthError, match="is more than 1024TiB; give at most that"):
        parse_bytes(text)
    assert parse_bytes("1024TiB") == MOST_SUMMABLE


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (3_141_592_653, "3.142 GB"), (2e12, "2 TB")],
)
def test_sizes_are_shown_in_the_unit_that_fits(num_bytes: float, text: str) -> None:
    assert format_bytes(num_bytes) == text


def test_both_families_of_units_are_shown() -> None:
    assert format_bytes_both(40 * 10**9) == "40 GB (37.25 GiB)"
    assert format_bytes_both(512) == "512 B (512 B)"


@pytest.mark.parametrize(
    ("time_us", "text"), [(812, "812 µs"), (18522, "18.52 ms"), (1_457_018, "1.457 s")]
)
def test_times_are_shown_in_the_unit_that_fits(time_us: float, text: str) -> None:
    assert format_us(time_us) == text


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("60", 60), ("60s", 60), ("2m", 120), ("500ms", 0.5), ("1.5h", 5400), ("20us", 2e-5)],
)
def test_durations_are_read(text: str, seconds: float) -> None:
    assert parse_seconds(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "-1s", "1 fortnight", "nan", "1m30s"])
def test_a_duration_that_is_none_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(SynthError, match="60s or 2m"):
        parse_seconds(text)


@pytest.mark.parametrize("text", ["9" * 400 + "s", "313000h"])
def test_a_duration_beyond_35_years_is_refused_with_what_may_be(text: str) -> None:
    with pytest.raises(SynthError, match="give at most 300000h") as raised:
        parse_seconds(text)
    assert len(str(raised.value)) < 120
    assert parse_seconds("300000h") == 300_000 * 3600


@pytest.mark.parametrize(
    ("text", "share"), [("0.5%", 0.005), ("0.005", 0.005), ("100%", 1), ("0", 0)]
)
def test_shares_are_read(text: str, share: float) -> None:
    assert parse_fraction(text) == pytest.approx(share)


@pytest.mark.parametrize("text", ["", "101%", "2", "-1%", "half"])
def test_a_share_that_is_none_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(SynthError, match=r"0\.5% or 0\.005"):
        parse_fraction(text)


@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [
        ("25GB/s", 25e9),
        ("200Gb/s", 25e9),
        ("200 Gbps", 25e9),
        ("400Gbit/s", 50e9),
        ("12.5GBps", 12.5e9),
        ("1GiB/s", 2.0**30),
        ("1kB/s", 1e3),
        ("8b/s", 1.0),
    ],
)
def test_bandwidths_are_read_in_bytes_and_in_bits(text: str, bytes_per_s: float) -> None:
    assert parse_bandwidth(text) == bytes_per_s


@pytest.mark.parametrize("text", ["", "25", "25GB", "0GB/s", "-1GB/s", "25gB/s", "1iB/s", "x/s"])
def test_a_bandwidth_that_is_none_is_refused_with_examples(text: str) -> None:
    with pytest.raises(SynthError, match=r"25GB/s \(bytes\) or 200Gb/s \(bits\)"):
        parse_bandwidth(text)


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [
        (1, "micro-batch", "1 micro-batch"),
        (2, "micro-batch", "2 micro-batches"),
        (0, "layer", "0 layers"),
        (1, "layer", "1 layer"),
    ],
)
def test_a_count_agrees_with_its_noun(number: int, noun: str, text: str) -> None:
    assert counted(number, noun) == text
