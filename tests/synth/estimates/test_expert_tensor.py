"""Experts that ranks divide: what each has, in which groups, counted rank by rank."""

from itertools import product

import pytest

from synth.errors import SynthError
from synth.estimates.device import device_of
from synth.estimates.estimated_profile import Estimator
from synth.estimates.layer_ops import LayerOps
from synth.estimates.layout import Layout
from synth.estimates.model_config import model_of
from synth.estimates.ops import ExchangeKind, GroupExchange, Matmul, Role
from synth.layouts.named_layout import read_layout
from synth.options.arguments.plan import LayoutArguments
from synth.options.layout_task import read_layout_task
from synth.profile.mesh import DeviceGroup

MIXTRAL = model_of("mixtral-8x22b")
H100 = device_of("h100")

FOLDED = [
    Layout(seq_len=4096, tensor=tensor, expert=expert, expert_tensor=parts, data=data)
    for tensor, expert, parts, data in product((1, 2, 4), (1, 2, 8), (1, 2, 4), (1, 2, 8))
    if tensor * data % (expert * parts) == 0
]


def expert_products(layout: Layout, role: Role) -> list[Matmul]:
    ops = LayerOps(MIXTRAL, layout, Estimator(MIXTRAL, H100, layout).software, 8)
    listed = ops.of("moe_block").by_role[role]
    return [one for one in listed if isinstance(one, Matmul) and one.groups * layout.expert == 8]


@pytest.mark.parametrize("layout", FOLDED, ids=str)
def test_the_ranks_of_a_stage_have_each_state_of_the_experts_once_per_replica(
    layout: Layout,
) -> None:
    """Parameters once for each of the `expert_state_ranks`, ZeRO-1's optimizer once altogether."""
    ranks = layout.tensor * layout.context * layout.data
    states = Estimator(MIXTRAL, H100, layout).states("moe_block")
    of_layer = MIXTRAL.expert_parameters
    assert ranks * states.experts == layout.expert_state_ranks * of_layer
    shared_share = states.shared / layout.state_ranks
    kept_of_experts = states.kept * (states.shared + states.experts) - shared_share
    assert ranks * kept_of_experts == pytest.approx(of_layer, rel=1e-9)


@pytest.mark.parametrize("role", Role)
def test_the_work_of_experts_is_the_same_however_they_are_divided(role: Role) -> None:
    whole = Layout(seq_len=4096, tensor=4, expert=4, data=4)
    divided = whole.replace(expert_tensor=4)
    for one in (whole, divided):
        flops = 4 * 4 * sum(each.flops for each in expert_products(one, role))
        tokens = 4 * 4096 * MIXTRAL.experts.per_token  # type: ignore[union-attr]
        assert flops == pytest.approx(2 * tokens * MIXTRAL.mlp_parameters(16_384))


def test_a_rank_that_divides_experts_gathers_the_tokens_of_the_others_that_do() -> None:
    """Per rank 4,096 / 2 tokens × 2 experts × 6,144 elements of 2 bytes, twice as many together."""
    layout = Layout(seq_len=4096, tensor=2, expert=4, expert_tensor=2, data=4)
    ops = LayerOps(MIXTRAL, layout, Estimator(MIXTRAL, H100, layout).software, 8)
    for role in (Role.F, Role.B):
        calls = [one for one in ops.of("moe_block").by_role[role] if isinstance(one, GroupExchange)]
        added = calls[-2:]
        assert [call.kind for call in added] == [
            ExchangeKind.ALL_GATHER,
            ExchangeKind.REDUCE_SCATTER,
        ]
        assert {call.num_bytes for call in added} == {2 * 2048 * 2 * 6144 * 2}
        assert {(call.nodes, call.ranks_per_node) for call in added} == {(1, 2)}


def test_groups_of_experts_are_on_the_nodes_of_their_ranks() -> None:
    """Ranks are counted along etp, ep, then the replicas of the experts."""
    for layout in FOLDED:
        ranks = layout.tensor * layout.context * layout.data
        inner = layout.expert_ranks
        for size, stride in (
            (layout.expert, layout.expert_tensor),
            (layout.expert_state_ranks, inner),
        ):
            firsts = [at for at in range(ranks) if at // stride % size == 0]
            nodes = max(len({(at + i * stride) // 4 for i in range(size)}) for at in firsts)
            assert layout.group(size, stride, 4)[0] == nodes, (layout, size, stride)


def test_attention_and_experts_share_the_same_devices() -> None:
    """Parallel folding: 8 devices a stage are tp 4 × dp 2 of attention, and ep 4 × etp 2."""
    given = LayoutArguments(model="mixtral-8x22b", device="h100", gpus=64, global_batch=64)
    question = read_layout_task(given).question
    named = read_layout("tp=4,dp=2,ep=4,etp=2,pp=8", question)
    assert named.layout.gpus == 64
    assert named.layout.words == "tp=4,ep=4,etp=2,pp=8,dp=2"
    with pytest.raises(SynthError, match="8 × 2 that divide each ranks share the experts"):
        read_layout("tp=4,dp=2,ep=8,etp=2,pp=8", question)


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        (Layout(seq_len=4096, tensor=3, expert_tensor=3), "heads"),
        (Layout(seq_len=4096, data=5, expert_tensor=5), "divide equally"),
    ],
)
def test_sizes_that_do_not_divide_are_refused(layout: Layout, words: str) -> None:
    with pytest.raises(SynthError, match=words):
        layout.check(MIXTRAL)


def test_a_dense_model_has_no_experts_to_divide() -> None:
    with pytest.raises(SynthError, match="no experts"):
        Layout(seq_len=4096, tensor=2, expert_tensor=2).check(model_of("llama3-8b"))


def test_a_profile_says_how_experts_are_divided_only_where_there_are_some() -> None:
    layout = Layout(seq_len=4096, tensor=2)
    of_experts = Estimator(MIXTRAL, H100, layout).profile().workload.group
    of_none = Estimator(model_of("llama3-8b"), H100, layout).profile().workload.group
    assert of_experts == DeviceGroup(tensor=2, sequence=True, expert_tensor=1)
    assert of_none == DeviceGroup(tensor=2, sequence=True)
    divided = Estimator(MIXTRAL, H100, layout.replace(expert_tensor=2)).profile()
    assert divided.workload.group is not None
    assert divided.workload.group.words == "tp 2 with sequence parallelism, etp 2"
    assert "etp2" in divided.name
