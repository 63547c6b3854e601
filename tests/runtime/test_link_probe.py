"""Latency and bandwidth from measured times, however noisy these are."""

import pytest

from synth.runtime.profiling.link_probe import fitted_link

SMALL_BYTES, LARGE_BYTES = 64 << 10, 4 << 20


def test_a_line_is_found_again() -> None:
    times_us = (50 + size / 2e9 * 1e6 for size in (SMALL_BYTES, LARGE_BYTES))
    link = fitted_link(20.0, *times_us)
    assert link.latency_us == pytest.approx(50, abs=0.01)
    assert link.bandwidth_bytes_per_s == pytest.approx(2e9, rel=1e-6)


@pytest.mark.parametrize(
    ("tiny_us", "small_us", "large_us", "latency_us"),
    [
        (25.0, 10.0, 2000.0, 25.0),  # small ones are cheaper than the line: through nothing
        (25.0, 5000.0, 1000.0, 500.0),  # small ones were disturbed: not beyond half a large one
        (9000.0, 10.0, 1000.0, 500.0),
    ],
)
def test_noise_makes_no_message_free_and_no_link_infinitely_fast(
    tiny_us: float, small_us: float, large_us: float, latency_us: float
) -> None:
    link = fitted_link(tiny_us, small_us, large_us)
    assert link.latency_us == latency_us
    assert link.transfer_us(LARGE_BYTES) == pytest.approx(large_us, abs=1)
