"""F and BW on two CUDA streams, and stages that FSDP2 gathers: refused."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from synth.costs.costs import uniform_costs
from synth.errors import SynthError
from synth.families import generate
from synth.runtime.pipeline.connections import check_gathered


def test_sharded_stages_are_refused_where_two_streams_read_them() -> None:
    costs = uniform_costs(4, forward_us=5, backward_input_us=5, backward_weight_us=5)
    costs = costs.replace(stages=tuple(stage.replace(hidden_us=2) for stage in costs.stages))
    pairs = generate("dualpipe-v:overlap", 2, 6, costs=costs)
    stages: list[Any] = [SimpleNamespace(is_sharded=False), SimpleNamespace(is_sharded=True)]
    cuda = torch.device("cuda")
    with pytest.raises(SynthError, match="FSDP2 gathers the parameters of a stage on one"):
        check_gathered(pairs, stages, cuda)
    check_gathered(pairs, stages[:1], cuda)
    check_gathered(pairs.one_after_the_other, stages, cuda)
    check_gathered(pairs, stages, torch.device("cpu"))
