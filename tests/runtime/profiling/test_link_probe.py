"""Latency and bandwidth from measured times, however noisy these are."""

import signal
from typing import Any

import pytest
import torch

from synth.errors import SynthError
from synth.runtime.profiling.link_probe import fitted_link
from synth.runtime.training import launch
from synth.runtime.training.local_ranks import Signalled

SMALL_BYTES, LARGE_BYTES = 64 << 10, 4 << 20


def test_a_line_is_found_again() -> None:
    small_us, large_us = (50 + size / 2e9 * 1e6 for size in (SMALL_BYTES, LARGE_BYTES))
    link = fitted_link(20.0, small_us, large_us, large_us)
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
    link = fitted_link(tiny_us, small_us, large_us, large_us)
    assert link.latency_us == latency_us
    assert link.transfer_us(LARGE_BYTES) == pytest.approx(large_us, abs=1)


def test_bandwidth_is_that_of_a_link_busy_in_both_directions() -> None:
    small_us, large_us = (50 + size / 2e9 * 1e6 for size in (SMALL_BYTES, LARGE_BYTES))
    both_us = 50 + LARGE_BYTES / 1.5e9 * 1e6
    link = fitted_link(20.0, small_us, large_us, both_us)
    assert link.latency_us == pytest.approx(50, abs=0.01)
    assert link.bandwidth_bytes_per_s == pytest.approx(1.5e9, rel=1e-6)


def test_an_exchange_that_was_quicker_than_one_way_makes_no_latency_beyond_it() -> None:
    link = fitted_link(500.0, 600.0, 2000.0, 400.0)
    assert link.latency_us == 200.0
    assert link.transfer_us(LARGE_BYTES) == pytest.approx(400, abs=1)


def probe_and_exchange(rank: int, size: int) -> Any:
    """Return the links that are found, and the data from the other rank."""
    from synth.runtime.execution.transport.open_channels import open_channels
    from synth.runtime.profiling import link_probe
    from synth.runtime.world import World

    cpu, pair = torch.device("cpu"), (0, 1)
    world = World(rank, size, cpu, "gloo", "here", 1)
    both = [link_probe._transfer(*pair), link_probe._transfer(1, 0)]
    channels = open_channels(cpu, both)
    outgoing, incoming = torch.full((LARGE_BYTES,), rank + 1.0), torch.zeros(LARGE_BYTES)
    for _ in range(3):
        link_probe._exchange(rank, channels, pair, outgoing, incoming)
    return link_probe.probe_links(world), incoming.unique().tolist()


def test_messages_far_beyond_any_buffer_cross_at_the_same_time(pool: Any) -> None:
    (links, first), (nothing, second) = pool.run(probe_and_exchange, 2)
    assert (first, second) == ([2.0], [1.0])
    assert links.default.bandwidth_bytes_per_s > 0
    assert links.default.latency_us > 0
    assert nothing is None


@pytest.mark.parametrize(
    ("sent", "told", "code"),
    [(signal.SIGINT, "SIGINT", 130), (signal.SIGTERM, "SIGTERM", 143)],
)
def test_a_signal_while_links_are_measured_is_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch, sent: signal.Signals, told: str, code: int
) -> None:
    def interrupted(*arguments: object, **options: object) -> None:
        raise Signalled(sent)

    monkeypatch.setattr(launch, "run_ranks", interrupted)
    with pytest.raises(SynthError, match=f"stopped by {told}: the links were being") as raised:
        launch.launch_link_probe(2, "cpu")
    assert raised.value.exit_code == code
