"""Seeds of independent random numbers, and torch's generators under them."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def derive_seed(*parts: object) -> int:
    """Return a number below 2^63 for each sequence of parts, the same on every machine."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Let torch's default generator of the CPU begin from a seed, and restore its state after."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def generators_of(device: torch.device) -> list[torch.Generator]:
    """Return torch's default generators that a layer on a device draws from."""
    found: list[torch.Generator] = [torch.default_generator]
    if device.type == "cuda":
        found.append(torch.cuda.default_generators[device.index or 0])
    return found
