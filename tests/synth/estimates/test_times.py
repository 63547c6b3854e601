"""Times of kernels and collectives: between what was measured, and monotonic."""

from itertools import pairwise, product
from statistics import median

import pytest

from synth.errors import SynthError
from synth.estimates.collectives import collective_us
from synth.estimates.device import Device, device_of, devices
from synth.estimates.layout import Software
from synth.estimates.op_times import parts_of
from synth.estimates.ops import Attention, ExchangeKind, GroupExchange, Matmul, Role
from synth.estimates.rates import attention_flops_per_s, matmul_efficiency, read_table

H100 = device_of("h100")


def test_every_device_has_its_numbers_from_somewhere() -> None:
    names = [device.name for device in devices()]
    needed = {"a100", "a800", "h100", "h100-pcie", "h800", "h200", "h20", "b200", "gb200"}
    assert needed | {"mi300x", "l40s"} <= set(names)
    assert all(device.sources for device in devices())


def test_an_efficiency_lies_between_the_measured_ones() -> None:
    for tokens, size in product((1, 64, 1000, 4096, 10**6), (64, 4096, 28672)):
        found = matmul_efficiency(H100, Matmul(tokens, size, size, Role.F, "bfloat16"))
        assert 0.02 < found < 0.9


def test_interpolated_efficiencies_are_near_the_measured_ones() -> None:
    """Kernels of neighbouring sizes differ by a few percent, and so do these."""
    errors = []
    for row in read_table("kernels.csv"):
        if (row["device"], row["op"], row["role"]) == ("b200", "matmul", "F"):
            m, n, k = (int(row[name]) for name in "mnk")
            found = matmul_efficiency(device_of("b200"), Matmul(m, n, k, Role.F, "bfloat16"))
            errors.append(abs(found / float(row["efficiency"]) - 1))
    assert len(errors) == 144 and median(errors) < 0.08


def test_more_tokens_never_take_less_time() -> None:
    for role, size in product(Role, (1024, 8192)):
        times = [
            parts_of([Matmul(tokens, size, size, role, "bfloat16")], H100, Software()).total_us
            for tokens in (2**n for n in range(6, 16))
        ]
        assert all(less < more for less, more in pairwise(times))


def test_attention_is_faster_with_more_heads_and_longer_sequences() -> None:
    def rate(pairs: float, length: int) -> float:
        call = Attention(pairs, length, length / 2, 128, 128, Role.F)
        return attention_flops_per_s(H100, call, "flash3")

    assert rate(4, 4096) < rate(32, 4096) < rate(32, 16384)
    # FlashAttention-3 at 4096 tokens and 2048 tiles: 579 TFLOP/s (arXiv 2407.08608, figure 5).
    assert rate(64, 4096) == pytest.approx(579e12, rel=0.01)


@pytest.mark.parametrize("kind", ExchangeKind)
@pytest.mark.parametrize("device", devices(), ids=lambda device: device.name)
def test_a_larger_tensor_never_takes_less_time(kind: ExchangeKind, device: Device) -> None:
    for nodes, near in product((1, 2, 5, 64), (1, 2, 4, 8)):
        times = [
            collective_us(device, GroupExchange(kind, 2.0**n, nodes, near)) for n in range(8, 36)
        ]
        assert all(less <= more for less, more in pairwise(times))
        assert (times[0] == 0) == (nodes * near == 1)


@pytest.mark.parametrize(
    ("device", "num_bytes", "measured"),
    [("a100", 2**30, 229), ("h200", 2**30, 367), ("b200", 2**30, 682)],
)
def test_an_all_reduce_in_a_node_is_near_the_measured_bus_bandwidth(
    device: str, num_bytes: int, measured: float
) -> None:
    """Rings in GB/s (stas00/ml-engineering; large messages without NVLS)."""
    call = GroupExchange(ExchangeKind.ALL_REDUCE, num_bytes, 1, 8)
    bus = 2 * 7 / 8 * num_bytes / collective_us(device_of(device), call) / 1e3
    assert bus == pytest.approx(measured, rel=0.12)


def test_one_interface_for_an_eighth_is_as_wide_as_eight_for_all() -> None:
    """Data parallelism beside 8 ranks of tensor parallelism has one interface a group."""
    whole = GroupExchange(ExchangeKind.REDUCE_SCATTER, 8e9, 16, 8)
    part = GroupExchange(ExchangeKind.REDUCE_SCATTER, 1e9, 16, 1)
    assert collective_us(H100, part) == pytest.approx(collective_us(H100, whole), rel=0.1)


def test_an_unknown_device_or_dtype_is_refused() -> None:
    with pytest.raises(SynthError, match="neither known nor a file; known: a100"):
        device_of("h1000")
    with pytest.raises(SynthError, match="has no matrix products in float8"):
        device_of("a100").peak("float8")
