"""Devices of a node: racks of which a run takes a part, and nodes that it takes whole."""

import pytest

from synth.errors import SynthError
from synth.layouts.legal import legal_layouts
from synth.options.arguments.plan import LayoutArguments
from synth.options.layout_task import LayoutTask, read_layout_task


def task_of(device: str, gpus: int) -> LayoutTask:
    return read_layout_task(
        LayoutArguments(model="llama3-405b", device=device, gpus=gpus, global_batch=gpus)
    )


@pytest.mark.parametrize(("gpus", "node"), [(128, 64), (144, 72), (64, 72), (256, 64)])
def test_a_run_takes_equal_parts_of_racks(gpus: int, node: int) -> None:
    assert task_of("gb200", gpus).question.device.ranks_per_node == node


@pytest.mark.parametrize("gpus", [64, 128])
def test_tensor_parallelism_divides_the_devices_that_a_run_takes_of_a_rack(gpus: int) -> None:
    found = {one.groups.tensor for one in legal_layouts(task_of("gb300", gpus).question)}
    assert {8, 16, 32} <= found


def test_the_error_names_a_number_of_devices_per_node_that_works() -> None:
    with pytest.raises(SynthError, match=r"gpus.per.node 6$"):
        task_of("h100", 12)
