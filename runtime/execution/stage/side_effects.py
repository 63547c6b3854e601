"""Restores a module after a trial run: its attributes, its buffers, and what its code reaches."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from ...module_state import Snapshot


@contextmanager
def same_buffers(module: nn.Module) -> Iterator[None]:
    """Restore a module's buffers, such as running statistics, after the block.

    They may have moved to another device and back meanwhile, which makes them other tensors.
    """
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    try:
        yield
    finally:
        with torch.no_grad():
            for name, buffer in module.named_buffers():
                if name in before and before[name].shape == buffer.shape:
                    buffer.copy_(before[name])


@contextmanager
def unchanged(module: nn.Module) -> Iterator[None]:
    """Restore after the block all that a module's code can change, but for buffers' values.

    `functional_call` itself leaves the trial's tensors in a module that has several names. A
    container that a library's object holds, such as a dictionary of angles by length, is restored
    if tensors without data have been added to it.
    """
    before = Snapshot(module)
    try:
        yield
    finally:
        before.put_back()
