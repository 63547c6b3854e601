"""Measured bytes are those of the window alone."""

import torch

from synth.runtime.profiling.meter import measure

CPU = torch.device("cpu")
KILOBYTE = 1024


def allocated(kilobytes: int) -> torch.Tensor:
    return torch.empty(kilobytes * KILOBYTE, dtype=torch.uint8)


def test_peak_and_what_is_left() -> None:
    with measure(CPU) as found:
        kept = allocated(2)
        freed = allocated(5)
        del freed
        more = allocated(1)
    assert found.peak_bytes == 7 * KILOBYTE
    assert found.net_bytes == 3 * KILOBYTE
    del kept, more


def test_frees_of_memory_of_an_earlier_window_do_not_count() -> None:
    with measure(CPU) as earlier:
        old = allocated(16)
    assert earlier.net_bytes == 16 * KILOBYTE
    with measure(CPU) as found:
        first = allocated(3)
        del old
        second = allocated(4)
    assert (found.peak_bytes, found.net_bytes) == (7 * KILOBYTE, 7 * KILOBYTE)
    del first, second


def test_a_window_that_follows_another_counts_what_it_frees() -> None:
    with measure(CPU) as earlier:
        old, freed_at_once = allocated(16), allocated(2)
        del freed_at_once
    with measure(CPU, after=earlier) as found:
        new = allocated(3)
        del old
    assert (found.peak_bytes, found.net_bytes) == (3 * KILOBYTE, -13 * KILOBYTE)
    with measure(CPU, after=found) as last:
        del new
    assert (last.peak_bytes, last.net_bytes) == (0, -3 * KILOBYTE)
