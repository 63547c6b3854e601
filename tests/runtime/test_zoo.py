"""More than a hundred kinds of module, with F, B and W of several micro-batches interleaved."""

import pytest

from tests.runtime.zoo import layers, weights, wrappings
from tests.runtime.zoo.replay import replay

CASES = {case.name: case for case in [*layers.CASES, *weights.CASES, *wrappings.CASES]}


@pytest.mark.filterwarnings(
    "ignore:Using padding='same'",
    "ignore:`torch.jit.script`",
    "ignore:The PyTorch API of nested tensors",
    "ignore:The .grad attribute",  # the compiler asks every tensor for it
)
@pytest.mark.parametrize("name", CASES)
def test_gradients_are_autograds(name: str) -> None:
    replay(CASES[name])


def test_the_zoo_is_large() -> None:
    assert len(CASES) == len([*layers.CASES, *weights.CASES, *wrappings.CASES]) >= 100
