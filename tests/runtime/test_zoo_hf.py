"""Hugging Face's models and layers, with F, B and W of several micro-batches interleaved."""

from collections.abc import Iterator

import pytest
import torch

pytest.importorskip("transformers")

from tests.runtime.zoo import hugging_face
from tests.runtime.zoo.replay import replay

CASES = {case.name: case for case in hugging_face.CASES}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Kernels this small only wait for each other's threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_autograds(name: str) -> None:
    replay(CASES[name], steps=2)


def test_the_names_are_distinct() -> None:
    assert len(CASES) == len(hugging_face.CASES)
