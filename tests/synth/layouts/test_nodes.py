"""Devices of a node: racks of which a run takes a part, and nodes that it takes whole."""

from collections import Counter
from itertools import product
from math import lcm

import pytest

from synth.errors import SynthError
from synth.estimates.device import device_of
from synth.estimates.layout import Layout
from synth.layouts.legal import legal_layouts
from synth.op_kinds import OpKind
from synth.options.arguments.estimate import EstimateArguments
from synth.options.arguments.plan import LayoutArguments
from synth.options.estimator import estimator_of
from synth.options.layout_task import LayoutTask, read_layout_task


def task_of(
    device: str, gpus: int, *, nodes: int | None = None, node: int | None = None
) -> LayoutTask:
    return read_layout_task(
        LayoutArguments(
            model="llama3-405b",
            device=device,
            gpus=gpus,
            global_batch=gpus,
            nodes=nodes,
            gpus_per_node=node,
        )
    )


@pytest.mark.parametrize(("gpus", "node"), [(128, 64), (144, 72), (64, 64), (256, 64)])
def test_a_run_takes_equal_parts_of_racks(gpus: int, node: int) -> None:
    assert task_of("gb200", gpus).question.device.ranks_per_node == node


@pytest.mark.parametrize(
    ("ranks", "node"),
    [(1, 72), (8, 72), (64, 64), (256, 64), (96, 48), (144, 72), (5, 70), (73, 72)],
)
def test_groups_fill_what_is_taken_of_a_rack(ranks: int, node: int) -> None:
    assert device_of("gb200").filled_by(ranks).ranks_per_node == node
    assert device_of("h100").filled_by(ranks).ranks_per_node == 8


def test_experts_of_64_ranks_exchange_within_a_rack() -> None:
    def longest_us(nodes: int | None = None) -> float:
        given = EstimateArguments(model="deepseek-v3", device="gb200", ep=64, gpus_per_node=nodes)
        profile = estimator_of(given).profile()
        layers = map(profile.layer_profile, range(len(profile.layers)))
        return max(layer.time_us[OpKind.F].median_us for layer in layers)

    assert longest_us() == longest_us(64)
    assert longest_us(8) > 1.5 * longest_us()


@pytest.mark.parametrize("gpus", [64, 128])
def test_tensor_parallelism_divides_the_devices_that_a_run_takes_of_a_rack(gpus: int) -> None:
    found = {one.groups.tensor for one in legal_layouts(task_of("gb300", gpus).question)}
    assert {8, 16, 32} <= found


@pytest.mark.parametrize("node", [1, 2, 3, 4, 6, 8, 12])
def test_the_group_with_the_fewest_ranks_in_a_node_counts(node: int) -> None:
    groups = Layout(seq_len=1024)
    for size, stride in product(range(1, 13), (1, 2, 3, 4, 8)):
        # All groups until nodes and groups begin together again; rank i is on node i // node.
        begins = range(0, lcm(size * stride, node), size * stride)
        fewest = min(
            min(Counter((begin + i * stride) // node for i in range(size)).values())
            for begin in begins
        )
        num_nodes, near = groups.group(size, stride, node)
        assert near <= fewest and num_nodes * near >= size
        if node % stride == 0:
            assert near == fewest


def test_an_exchange_within_nodes_that_groups_do_not_fill_crosses_them() -> None:
    # Of ranks 4 to 7 in nodes of 6 two are in each of two nodes.
    groups = Layout(seq_len=1024)
    assert groups.group(4, 1, 6) == (2, 2)
    assert groups.group(4, 1, 8) == (1, 4)


def test_the_error_names_a_number_of_devices_per_node_that_works() -> None:
    with pytest.raises(SynthError, match=r"gpus.per.node 6$"):
        task_of("h100", 12)


def test_nodes_share_the_devices_in_place_of_the_nodes_of_the_device() -> None:
    task = task_of("h100", 64, nodes=16)
    assert task.question.device.ranks_per_node == 4
    assert max(one.groups.tensor for one in legal_layouts(task.question)) == 4
    assert task.nodes == (16, 4)
    assert task_of("h100", 12, nodes=2).nodes == (2, 6)
    assert task_of("h100", 64, nodes=8, node=8).nodes == (8, 8)


def test_a_run_within_a_node_has_one_and_the_nodes_of_racks_are_not_known() -> None:
    assert task_of("h100", 4).nodes == (1, 4)
    assert task_of("gb200", 128).nodes is None
    assert task_of("gb200", 128, nodes=2).nodes == (2, 64)


@pytest.mark.parametrize(
    ("nodes", "node", "words"),
    [
        (7, None, r"7 nodes cannot share 64 devices equally; give \S*nodes 4, or a multiple of 7"),
        (128, None, r"cannot share 64 devices equally; give \S*nodes 64,"),
        (8, 4, r"nodes 8 have 8 each of 64 devices, and \S*gpus.per.node is 4; leave one"),
    ],
)
def test_nodes_that_contradict_the_devices_are_refused(
    nodes: int, node: int | None, words: str
) -> None:
    with pytest.raises(SynthError, match=words):
        task_of("h100", 64, nodes=nodes, node=node)
