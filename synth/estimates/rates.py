"""Measured rates of kernels, between whose points is interpolated.

Matrix products: the efficiency is a function of the tokens, the elements n·k of the matrix, and the
role. The points of a table lie irregularly, so a value is the mean of all points with weights that
fall with the distance in both logarithms (Nadaraya 1964, Watson 1964), which stays between the
measured values outside their range. Attention: by the sequence length, times the share of the
device that the tiles of all heads fill.
"""

import csv
import io
from functools import cache
from importlib import resources
from math import log2

import numpy as np
import numpy.typing as npt

from synth.estimates.device import Device
from synth.estimates.ops import Attention, Matmul, Role

# Devices of which no roles were measured, and where theirs are.
_ROLES_OF = {"a100": "a100-pcie"}

# Where roles were measured on no device of the kind: W over F, of large products (A100 and B200).
_W_OVER_F = 0.97

# Width of the weights, in octaves: of tokens, which matter most below a thousand, and of n·k.
_TOKENS_WIDTH, _ELEMENTS_WIDTH = 0.5, 1.0

# Rows of queries that a block of an attention kernel takes; and in measured calls of the tables,
# 2048 such tiles.
_TILE, _TILES_MEASURED = 128, 2048

_Points = tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.float64]]


def read_table(name: str) -> list[dict[str, str]]:
    """Return the rows of a CSV file of this package."""
    text = resources.files(__package__).joinpath("data", name).read_text(encoding="utf-8")
    return list(csv.DictReader(io.StringIO(text)))


def matmul_efficiency(device: Device, product: Matmul) -> float:
    """The share of the device's peak that a product reaches."""
    tokens, elements = round(product.tokens), product.n * product.k
    like = device.measured_like
    grouped = product.groups > 1
    found = _efficiency(like, grouped, product.role.value, max(1, tokens), elements)
    return found * (1.0 if product.dtype == "bfloat16" else device.narrow_efficiency)


def best_efficiency(device: Device) -> float:
    """The share of the device's peak that a large product in bfloat16 reaches."""
    return matmul_efficiency(device, Matmul(8192, 8192, 8192, Role.F, "bfloat16"))


@cache
def _efficiency(like: str, grouped: bool, role: str, tokens: int, elements: int) -> float:
    op = "grouped_matmul" if grouped else "matmul"
    own = _points(like, op, role)
    if own is not None:
        return _interpolated(own, tokens, elements)
    if (other := _ROLES_OF.get(like)) is not None and grouped:
        points = _points(other, op, role)
        return _interpolated(points, tokens, elements) if points is not None else 0.5
    if grouped:  # H100 lacks them: of B200, whose products reach 0.7 of H100's efficiency
        points = _points("b200", op, role)
        assert points is not None
        return min(0.7, _interpolated(points, tokens, elements) * 1.4)
    ratio = _W_OVER_F if role == Role.W else 1.0
    forward = _points(like, op, Role.F.value)
    assert forward is not None
    return ratio * _interpolated(forward, tokens, elements)


@cache
def _points(device: str, op: str, role: str) -> _Points | None:
    """Return the logarithms of tokens and elements, and the efficiencies; None: not measured."""
    rows = [
        row
        for row in read_table("kernels.csv")
        if (row["device"], row["op"], row["role"]) == (device, op, role)
    ]
    if not rows:
        return None
    sizes = [tuple(int(row[name]) for name in "mnk") for row in rows]
    # The table has the sizes of the product itself: of W, m × n is the weight and k the tokens,
    # but for grouped ones, whose m is the tokens of an expert in every role.
    is_weight = role == Role.W and op == "matmul"
    tokens = [k if is_weight else m for m, n, k in sizes]
    elements = [m * n if is_weight else n * k for m, n, k in sizes]
    return (
        np.log2(np.array(tokens, dtype=float)),
        np.log2(np.array(elements, dtype=float)),
        np.array([float(row["efficiency"]) for row in rows]),
    )


def _interpolated(points: _Points, tokens: int, elements: int) -> float:
    """Return the weighted mean of the points; beyond their range that of the nearest ones."""
    by_tokens, by_elements, values = points
    at = np.clip(log2(tokens), by_tokens.min(), by_tokens.max())
    of = np.clip(log2(elements), by_elements.min(), by_elements.max())
    squared = ((by_tokens - at) / _TOKENS_WIDTH) ** 2 + ((by_elements - of) / _ELEMENTS_WIDTH) ** 2
    weights = np.exp(-(squared - squared.min()) / 2)
    return float(weights @ values / weights.sum())


def attention_flops_per_s(device: Device, call: Attention, kernel: str) -> float:
    """The rate of an attention kernel on a device.

    Args:
        kernel: flash2 or flash3; devices without its rates have those of the other.
    """
    like = device.measured_like
    lengths, rates, half_tiles = _attention(like, kernel, call.role.value)
    # Of a sequence the whole length counts, twice the keys that a query reads.
    rate = float(np.interp(log2(max(1.0, 2 * call.keys)), lengths, rates))
    tiles = call.pairs * call.queries / _TILE
    filled = tiles / (tiles + half_tiles) * (_TILES_MEASURED + half_tiles) / _TILES_MEASURED
    # Of heads that are not 128 wide: a narrow one does more exponentials for each product, a wide
    # one has fewer rows in a tile (both by the README of FlashAttention and SimuMax's tables).
    width = max(call.query_dim, call.value_dim)
    of_width = 1.0 if width == 128 else (0.77 + (width - 64) / 64 * 0.23 if width < 128 else 0.78)
    scale = device.peak("bfloat16") / _PEAKS[like]
    return rate * filled * max(0.3, of_width) * scale


_PEAKS = {"a100": 312e12, "h100": 989.4e12, "b200": 2250e12}


@cache
def _attention(
    like: str, kernel: str, role: str
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], float]:
    table = [row for row in read_table("attention.csv") if row["device"] == like]
    rows = [row for row in table if row["role"] == role]
    rows = [row for row in rows if row["kernel"] == kernel] or rows
    return (
        np.log2(np.array([float(row["seq"]) for row in rows])),
        np.array([1e12 * float(row["tflops"]) for row in rows]),
        float(rows[0]["half_tiles"]),
    )
