"""The time that profiling still takes, by an estimate from the rounds that have ended."""

import pytest
import torch
from torch import nn

from synth.profile.workload import Workload
from synth.runtime.profiling.pace import ProfilingPace, ProfilingProgress
from synth.runtime.profiling.profile_model import profile_layers, profile_model

TINY = {"vocabulary_size": 64, "width": 32, "num_blocks": 5, "num_heads": 2, "context_length": 16}


class Clock:
    """A clock that is set."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_rounds_to_come_take_as_long_as_those_before_and_layers_as_the_mean() -> None:
    clock, said = Clock(), list[ProfilingProgress]()
    pace = ProfilingPace(3, 4, said.append, clock)
    pace.begin("a")
    assert said[-1].left_s is None
    clock.now_s += 1
    pace.end_round()
    assert tuple(said[-1]) == ("a", 1, 3, 1, 4, None)  # too little to go by
    for _ in range(3):
        clock.now_s += 1
        pace.end_round()
    clock.now_s += 2  # memory is measured behind the rounds
    pace.begin("b")
    assert tuple(said[-1]) == ("b", 2, 3, 0, 4, None)
    clock.now_s += 10
    pace.end_round()
    assert said[-1].left_s == pytest.approx(30 + (6 + 40) / 2)
    assert said[-1].words == "b (2 of 3), round 1 of 4"


def test_a_single_layer_is_estimated_from_its_first_round_on() -> None:
    clock, said = Clock(), list[ProfilingProgress]()
    pace = ProfilingPace(1, 4, said.append, clock)
    pace.begin("a")
    clock.now_s += 2
    pace.end_round()
    assert said[-1].left_s == 6


def test_more_layers_than_were_foreseen_are_counted() -> None:
    said = list[ProfilingProgress]()
    pace = ProfilingPace(1, 1, said.append, Clock())
    for name in "ab":
        pace.begin(name)
        pace.end_round()
    assert [(each.number, each.of) for each in said] == [(1, 1), (1, 1), (2, 2), (2, 2)]
    assert said[-1].left_s == 0


def test_a_profile_tells_every_round_of_every_distinct_layer() -> None:
    said = list[ProfilingProgress]()
    workload = Workload(model="gpt", arguments=TINY, micro_batch_size=1, sequence_length=16)
    device = torch.device("cpu")
    profile = profile_model(workload, device, warmup=1, iterations=2, on_progress=said.append)
    names = list(profile.layer_profiles)
    assert names == ["embedding", "block.0", "head"]
    assert [(each.layer, each.number, each.of, each.round) for each in said] == [
        (name, number, 3, ended) for number, name in enumerate(names, 1) for ended in range(4)
    ]
    assert said[-1].left_s == 0


class Total(nn.Module):
    """Adds up its inputs: a loss without parameters."""

    def forward(self, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (x - targets).sum()


def test_layers_of_a_program_are_measured_with_the_same_options() -> None:
    told, said = list[str](), list[ProfilingProgress]()
    profile_layers(
        [nn.Linear(2, 2), Total()],
        torch.ones(1, 2),
        torch.ones(1, 2),
        warmup=0,
        iterations=2,
        tell=told.append,
        on_progress=said.append,
    )
    assert [line.partition(":")[0] for line in told] == ["measured Linear.0", "measured Total.1"]
    assert [each.round for each in said] == [0, 1, 2] * 2


def test_an_option_that_profiling_does_not_have_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="'iters'"):
        profile_layers([Total()], torch.ones(1), torch.ones(1), iters=2)  # type: ignore[call-arg]
