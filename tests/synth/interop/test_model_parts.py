"""Layers under the names of other frameworks, tried against their own code where it installs."""

import tomllib
from collections.abc import Callable
from itertools import chain

import pytest

import synth
from synth.errors import SynthError
from synth.interop.megatron import to_megatron
from synth.interop.torchtitan import to_torchtitan
from synth.profile import Profile
from synth.profile.layer_times import LayerTimes


def plan_of(
    *names: str, partition: str = "even", ranks: int = 2, family: str = "1f1b"
) -> synth.Plan:
    layers = [LayerTimes(name=n, forward_us=9, backward_us=18, output_bytes=1) for n in names]
    profile = Profile.from_times("mine", layers)
    return synth.simulate(family, profile, ranks=ranks, micro_batches=4, partition=partition)


def parts_of(plan: synth.Plan, **layers: str) -> list[list[str]]:
    options = tomllib.loads(to_torchtitan(plan, "plan.csv", layers))
    found: list[list[str]] = options["parallelism"]["module_fqns_per_model_part"]
    return found


MOE = [f"moe.{i}" for i in range(5)]
DEEPSEEK = ["embedding", *MOE, "mtp", "head"]


@pytest.mark.parametrize(
    ("partition", "layout"), [("4,4", "Et*3|ttmL"), ("6,2", "Et*5|mL"), ("7,1", "Et*5m|L")]
)
def test_a_layer_of_multi_token_prediction_is_m(partition: str, layout: str) -> None:
    assert to_megatron(plan_of(*DEEPSEEK, partition=partition)) == layout


@pytest.mark.parametrize("partition", ["4,4", "6,2", "7,1"])
def test_megatrons_own_check_takes_the_layout(partition: str) -> None:
    parser = pytest.importorskip("megatron.core.transformer.pipeline_parallel_layer_layout")
    text = to_megatron(plan_of(*DEEPSEEK, partition=partition))
    layout = parser.PipelineParallelLayerLayout(text, 2)
    layout.validate_layer_layout(num_layers=5, mtp_num_layers=1)


def test_layers_of_multi_token_prediction_stay_together() -> None:
    names = ["embedding", *MOE, "mtp.0", "mtp.1", "head"]
    assert to_megatron(plan_of(*names, partition="5,4")) == "Et*4|tmmL"
    with pytest.raises(SynthError, match="are on stages 0, 1, and Megatron-LM has all of them on"):
        to_megatron(plan_of(*names, partition="7,2"))
    with pytest.raises(SynthError, match=r"on stages 0, .* the last one of its rank"):
        to_megatron(plan_of(*DEEPSEEK, partition="7,1", ranks=1, family="interleaved:2"))


@pytest.mark.parametrize(
    "name",
    [
        *("encoder.3", "projector", "decoder_embedding", "attention.2", "vision_block.1"),
        *("resampler", "mtp_head", "mtp_norm"),
    ],
)
@pytest.mark.parametrize("write", [to_megatron, parts_of])
def test_a_layer_that_is_not_known_is_refused_by_name(
    name: str, write: Callable[[synth.Plan], object]
) -> None:
    plan = plan_of("embedding", "block.0", "block.1", name, "block.2", "head")
    with pytest.raises(SynthError, match=f"layer '{name}' is not known .* --layer '"):
        write(plan)


def test_torchtitan_has_no_multi_token_prediction_under_pipelines() -> None:
    with pytest.raises(SynthError, match="layer 'mtp' is not known as a part that torchtitan has"):
        parts_of(plan_of(*DEEPSEEK))


@pytest.mark.parametrize(
    "names",
    [
        ["wte", "GPT2Block.1", "GPT2Block.2", "ln_f", "lm_head"],
        ["Embedding.0", "LlamaDecoderLayer.1", "LlamaDecoderLayer.2", "Head.3"],
        ["tok_embeddings", "MyOwnBlock.1", "MyOwnBlock.2", "output_layer"],
        ["embedding", "dense.0", "moe.0", "norm", "output"],
        ["embed_tokens", "layers.0", "layers.1", "RMSNorm.3", "LMHead.4"],
    ],
)
def test_known_names_and_one_class_of_equal_names_are_decoder_layers(names: list[str]) -> None:
    assert to_megatron(plan_of(*names, partition=f"2,{len(names) - 2}")) == "Et|tL"


def test_two_classes_of_unknown_names_may_be_anything() -> None:
    names = ["embedding", "FooBlock.0", "BarBlock.1", "head"]
    with pytest.raises(SynthError, match=r"layer 'FooBlock\.0' is not known"):
        to_megatron(plan_of(*names))
    assert to_megatron(plan_of(*names), {"FooBlock": "t", "BarBlock.1": "t"}) == "Et|tL"


def test_parts_out_of_order_are_refused() -> None:
    with pytest.raises(SynthError, match=r"layer 'wte' comes after 'block\.0'"):
        to_megatron(plan_of("block.0", "wte", "block.1"))
    with pytest.raises(SynthError, match="stage 0 holds a part of the model's embedding or head"):
        to_megatron(plan_of("wte", "block", "norm", "head", partition="3,1"))


def test_the_user_says_what_torchtitan_calls_layers() -> None:
    plan = plan_of("embedding", "dense", "encoder.0", "encoder.1", "head", partition="3,2")
    named = parts_of(plan, **{"encoder": "layers.{}", "head": "norm,out", "embedding": "wte"})
    assert named == [["wte", "layers.0", "layers.1"], ["layers.2", "norm", "out"]]
    assert parts_of(plan_of("block.0", "block.1", "loss"), loss="") == [
        ["tok_embeddings", "layers.0"],
        ["layers.1"],
    ]


def test_a_layer_that_the_plan_does_not_have_cannot_be_named() -> None:
    with pytest.raises(SynthError, match="the plan has no such layer, only embedding, moe, mtp"):
        to_megatron(plan_of(*DEEPSEEK), {"nextn": "m"})
    with pytest.raises(SynthError, match="'x' is no letter of Megatron-LM's layouts; give E, t"):
        to_megatron(plan_of(*DEEPSEEK), {"mtp": "x"})


@pytest.mark.parametrize("head", ["output", "lm_head"])
def test_torchtitans_own_splitter_gives_every_module_to_one_stage(head: str) -> None:
    """The head is `output` in releases up to 0.2 and `lm_head` from 0.3 on."""
    torchtitan = pytest.importorskip("torchtitan.distributed.pipeline_parallel")
    from torch import nn

    model = nn.Module()
    for name in ("tok_embeddings", "norm", head):
        model.add_module(name, nn.Linear(1, 1))
    model.add_module("layers", nn.ModuleDict({str(i): nn.Linear(1, 1) for i in range(5)}))
    plan = plan_of("embedding", *(f"dense.{i}" for i in range(2)), *MOE[:3], "norm", "head")
    held = [
        [name for name, _ in torchtitan._split_module(model, names).named_parameters()]
        for names in parts_of(plan)
    ]
    assert all(held)
    assert sorted(chain(*held)) == sorted(name for name, _ in model.named_parameters())
    assert f"{head}.weight" in held[-1] and "tok_embeddings.weight" in held[0]
