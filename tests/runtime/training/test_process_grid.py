"""Places of processes in the mesh of a run."""

import pytest
import torch

from synth.errors import SynthError
from synth.profile.mesh import DeviceGroup, Mesh
from synth.runtime.training.process_grid import Place
from synth.runtime.world import World


def world(size: int) -> World:
    return World(0, size, torch.device("cpu"), "gloo", "here", 2)


@pytest.mark.parametrize(
    ("num_processes", "mesh", "message"),
    [
        (8, Mesh(1, 4), "the plan is for 4 ranks, this run has 8 processes; start 4 (torchrun "
                        "--nproc-per-node), or give --data-parallel 2, or solve again with "
                        "--ranks 8"),
        (6, Mesh(2, 4), "2 pipelines of it (--data-parallel) take 8, this run has 6 processes; "
                        "start 8 (torchrun --nproc-per-node), or solve again with --ranks 3"),
        (4, Mesh(2, 4), "start 8 (torchrun --nproc-per-node), or give --data-parallel 1"),
        (6, Mesh(1, 2, 2), "the plan is for 2 ranks of 2 processes each (tensor parallelism), 4 "
                           "processes, this run has 6 processes; start 4 (torchrun "
                           "--nproc-per-node), or solve again with --ranks 3"),
        (4, Mesh(2, 2, 2), "2 pipelines of it (--data-parallel) take 8, this run has 4 processes; "
                           "start 8 (torchrun --nproc-per-node), or give --data-parallel 1"),
    ],
)  # fmt: skip
def test_another_number_of_processes_is_refused_with_the_ways_out(
    num_processes: int, mesh: Mesh, message: str
) -> None:
    with pytest.raises(SynthError) as refused:
        Place.of(world(num_processes), mesh)
    assert message in str(refused.value)


def test_processes_are_numbered_within_a_rank_and_then_within_a_pipeline() -> None:
    assert Mesh(2, 4).name(6) == "rank 2 of pipeline 1"
    assert Mesh(1, 4).name(2) == "rank 2"
    assert Mesh(1, 4, 2).name(5) == "process 1 of rank 2"
    mesh = Mesh(2, 2, 2)
    assert [tuple(mesh.place(n)) for n in range(8)] == [
        (0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 1),
        (1, 0, 0), (1, 0, 1), (1, 1, 0), (1, 1, 1),
    ]  # fmt: skip
    assert mesh.name(7) == "process 1 of rank 1 of pipeline 1"


def test_one_pipeline_is_of_all_processes() -> None:
    assert Place.of(world(4), Mesh(1, 4)) == Place(0, Mesh(1, 4))


def test_a_plan_says_its_processes_and_the_run_may_have_other_pipelines() -> None:
    group = DeviceGroup(tensor=4, data=8)
    assert Mesh.of(group, 12) == Mesh(8, 12, 4) and Mesh.of(group, 12).size == 384
    assert Mesh.of(group, 12, 2) == Mesh(2, 12, 4)
    assert Mesh.of(None, 3) == Mesh(1, 3, 1)


@pytest.mark.parametrize("name", ["context", "expert"])
def test_groups_that_synth_does_not_execute_are_refused_by_name(name: str) -> None:
    with pytest.raises(SynthError, match=f"{name} parallelism over 2 devices"):
        Mesh.of(DeviceGroup.model_validate({name: 2}), 4)
