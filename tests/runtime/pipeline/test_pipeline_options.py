"""Options of a pipeline: the object and the keywords say the same."""

from dataclasses import fields
from typing import Any

import pytest
import torch
from torch import nn

from synth.errors import SynthError
from synth.families import generate
from synth.runtime.execution.transport.in_process.ranks import InProcessGroup, run_ranks
from synth.runtime.pipeline import Pipeline
from synth.runtime.pipeline.options import PipelineKeywords, PipelineOptions


def test_each_option_is_a_keyword_too() -> None:
    assert set(PipelineKeywords.__annotations__) == {
        field.name for field in fields(PipelineOptions)
    }


def test_keywords_and_an_options_object_make_the_same_pipeline() -> None:
    mse, x = nn.functional.mse_loss, torch.ones(4, 2)

    def losses(group: InProcessGroup) -> list[float]:
        stage = nn.Linear(2, 2, bias=False)
        nn.init.ones_(stage.weight)  # y = 2 for x = 1, so the loss is (2 − 1)² = 1
        schedule, options = generate("gpipe", 1, 2), PipelineOptions(group=group, loss=mse)
        made = [
            Pipeline(schedule, stage, options),
            Pipeline(schedule, stage, group=group, loss=mse),
            Pipeline(schedule, stage, PipelineOptions(group=group), loss=mse),
        ]
        return [float(p.step(p.split(x, targets=x)) or 0) for p in made]

    assert run_ranks(1, losses) == [[1.0, 1.0, 1.0]]


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("loss", nn.MSELoss, "loss is the class MSELoss; give an instance"),
        ("loss", "mse", "loss is 'mse'; give a function"),
        ("on_gradients", 3, "on_gradients is 3; give a function"),
        ("timeout_s", -1, "timeout_s is -1; give a number of seconds above 0"),
        ("timeout_s", float("nan"), "timeout_s is nan"),
        ("look_ahead", "2", "look_ahead is '2'; give a whole number"),
        ("tied", [torch.ones(1)], "give parameters by name"),
        ("tied", {"table": 3}, r"tied\['table'\] is 3; give a parameter"),
    ],
)
def test_an_option_of_another_type_is_refused(option: str, value: Any, said: str) -> None:
    with pytest.raises(SynthError, match=said):
        PipelineOptions(**{option: value})


def test_an_unknown_option_is_an_error() -> None:
    with pytest.raises(TypeError, match="losss"):
        Pipeline(generate("gpipe", 1, 1), nn.Linear(2, 2), losss=None)  # type: ignore[call-arg]
