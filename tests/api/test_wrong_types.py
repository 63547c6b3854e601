"""Arguments of another type, in functions that programs call: refused by name."""

from typing import Any

import numpy as np
import pytest

import synth
from synth.errors import SynthError
from synth.families import generate

NAME = "zb-1.5b-p8-m24"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((None, 4, 4), "None is no name of a family"),
        (("1f1b", "4", 4), "1f1b was given '4' ranks and 4 micro-batches; give whole numbers"),
        (("1f1b", 4, 4.0), "1f1b was given 4 ranks and 4.0 micro-batches"),
        (("1f1b", 4, None), "and None micro-batches"),
    ],
)
def test_a_family_takes_a_name_and_whole_numbers(arguments: tuple[Any, ...], said: str) -> None:
    with pytest.raises(SynthError, match=said):
        generate(*arguments)


def test_a_rank_of_a_plan_is_a_whole_number_and_layers_are_a_list() -> None:
    plan = synth.simulate("1f1b", NAME, ranks=4, micro_batches=4)
    layers: Any = list(range(24))
    assert plan.modules(np.int64(3), layers) == {3: layers[18:]}  # type: ignore[arg-type]
    for rank in (None, "0", 0.5, 4):
        with pytest.raises(SynthError, match=f"has ranks 0 to 3; rank {rank!r} was asked for"):
            plan.modules(rank, layers)  # type: ignore[arg-type]
    with pytest.raises(SynthError, match="layers is a NoneType; give a list of all layers"):
        plan.modules(0, None)  # type: ignore[arg-type]


@pytest.mark.parametrize("layers", [None, [{"name": "block"}], "block"])
def test_a_profile_is_made_of_the_times_of_layers(layers: Any) -> None:
    with pytest.raises(SynthError, match="give a list of LayerTimes"):
        synth.Profile.from_times("mine", layers)
