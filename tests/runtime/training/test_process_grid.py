"""Places of processes in data-parallel pipelines."""

import pytest
import torch

from synth.errors import SynthError
from synth.runtime.training.process_grid import Place, place_name
from synth.runtime.world import World


def world(size: int) -> World:
    return World(0, size, torch.device("cpu"), "gloo", "here", 2)


@pytest.mark.parametrize(
    ("num_processes", "num_pipelines", "message"),
    [
        (8, 1, "the plan is for 4 ranks, this run has 8 processes; start 4 (torchrun "
               "--nproc-per-node), or give --data-parallel 2, or solve again with --ranks 8"),
        (6, 2, "2 pipelines of it (--data-parallel) take 8, this run has 6 processes; start 8 "
               "(torchrun --nproc-per-node), or solve again with --ranks 3"),
        (4, 2, "start 8 (torchrun --nproc-per-node), or give --data-parallel 1"),
    ],
)  # fmt: skip
def test_another_number_of_processes_is_refused_with_the_ways_out(
    num_processes: int, num_pipelines: int, message: str
) -> None:
    with pytest.raises(SynthError) as refused:
        Place.of(world(num_processes), 4, num_pipelines)
    assert message in str(refused.value)


def test_processes_are_numbered_pipeline_by_pipeline() -> None:
    assert place_name(6, num_ranks=4, num_pipelines=2) == "rank 2 of pipeline 1"
    assert place_name(2, num_ranks=4, num_pipelines=1) == "rank 2"


def test_one_pipeline_is_of_all_processes() -> None:
    assert Place.of(world(4), 4, 1) == Place(0)
