"""The answer of a rank that ran on the fake device; processes of a pool send it."""

from typing import NamedTuple


class Ran(NamedTuple):
    """The calls of a rank on the fake device.

    Attributes:
        faults: what the checker found.
        calls: by communicator, from its ranks and purpose, the calls of this rank.
        num_works: the number of kernels, copies and transfers.
        new_streams: the streams that were made after the first step.
        is_equal: True if the gradients are those of plain autograd.
    """

    faults: list[str]
    calls: dict[str, list[str]]
    num_works: int
    new_streams: int
    is_equal: bool
