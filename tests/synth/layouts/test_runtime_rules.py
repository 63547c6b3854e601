"""Layouts that a training program does not run are neither enumerated nor judged by name."""

from dataclasses import replace

import pytest

from synth.errors import SynthError
from synth.estimates.device import device_of
from synth.estimates.factors import software_of
from synth.estimates.layout import Precision, Recompute, Sharding
from synth.estimates.model_config import model_of
from synth.layouts.legal import legal_layouts
from synth.layouts.named_layout import read_layout
from synth.layouts.question import LayoutQuestion
from synth.layouts.runtime_rules import left_out, recomputes_layers
from synth.plan.runtimes import Allowed, Runtime
from synth.profile.optimizer import OptimizerSpec


def question_of(model: str, runtime: Runtime, seq_len: int = 4096) -> LayoutQuestion:
    return LayoutQuestion(
        shape=model_of(model),
        device=device_of("h100"),
        gpus=16,
        global_batch=16,
        seq_len=seq_len,
        software=software_of("megatron"),
        allowed=Allowed(runtime),
    )


@pytest.mark.parametrize(
    ("model", "runtime", "seq_len", "text", "words"),
    [
        ("mixtral-8x7b", Runtime.MEGATRON, 4096, "ep=8,sharding=fsdp", "expert parallelism"),
        ("mixtral-8x7b", Runtime.TORCHTITAN, 4096, "tp=2", "torchtitan"),
        ("mixtral-8x7b", Runtime.TORCHTITAN, 4096, "tp=4,ep=2", "multiple of cp × tp = 4"),
        ("mixtral-8x7b", Runtime.TORCHTITAN, 4096, "ep=8,sharding=none", "sharding=zero1"),
        ("llama3-8b", Runtime.TORCHTITAN, 4096, "cp=2,sharding=none", "give sharding=zero1"),
        ("llama3-8b", Runtime.SYNTH, 4100, "cp=4", "2 × cp × tp = 8"),
    ],
)
def test_a_layout_that_the_runtime_lacks_is_refused(
    model: str, runtime: Runtime, seq_len: int, text: str, words: str
) -> None:
    question = question_of(model, runtime, seq_len)
    with pytest.raises(SynthError, match=words):
        read_layout(text, question)
    named = read_layout(text, question_of(model, Runtime.SYNTH, 4096)).layout
    groups = replace(named, groups=named.groups.replace(seq_len=seq_len)).groups
    assert groups not in [one.groups for one in legal_layouts(question)]


def test_torchtitan_has_float8_of_experts_in_one_stage_alone() -> None:
    question = question_of("mixtral-8x7b", Runtime.TORCHTITAN)
    narrow = replace(question, precision=Precision.FP8)
    for text in ("pp=2", "cp=2,ep=2"):
        assert read_layout(text, question)
        with pytest.raises(SynthError, match="float8 neither with a pipeline nor with context"):
            read_layout(text, narrow)
    assert {(each.ranks, each.groups.context) for each in legal_layouts(narrow)} == {(1, 1)}
    assert {each.ranks for each in legal_layouts(question)} > {1, 2}
    found = left_out(Runtime.TORCHTITAN, narrow.shape, Precision.FP8)
    assert found is not None and "only layouts with pp=1 and cp=1 count" in found
    dense = replace(question_of("llama3-8b", Runtime.TORCHTITAN), precision=Precision.FP8)
    assert {each.ranks for each in legal_layouts(dense)} > {1, 2}


def test_megatron_reduces_gradients_of_fsdp_in_the_dtype_of_parameters() -> None:
    wide = question_of("llama3-8b", Runtime.MEGATRON)
    with pytest.raises(SynthError, match=r"give adamw\+master, or sharding=zero1"):
        read_layout("sharding=fsdp", wide)
    assert not any(each.groups.sharding is Sharding.FSDP for each in legal_layouts(wide))


def test_megatron_shards_no_tied_embedding_with_fsdp() -> None:
    question = replace(
        question_of("llama3-8b", Runtime.MEGATRON), optimizer=OptimizerSpec.parse("adamw+master")
    )
    tied = replace(question, shape=question.shape.replace(tied=True))
    for asked, is_there in ((question, True), (tied, False)):
        found = [one.groups.sharding is Sharding.FSDP for one in legal_layouts(asked)]
        assert any(found) is is_there


def test_torchtitan_shares_experts_by_whole_groups_of_tensor_and_context() -> None:
    question = question_of("mixtral-8x7b", Runtime.TORCHTITAN)
    every = [one.groups for one in legal_layouts(question)]
    assert any(one.expert > 1 and one.tensor > 1 for one in every)
    for one in every:
        within = one.tensor * one.context
        assert one.expert % within == 0 if one.expert > 1 else one.tensor == 1


def test_one_mode_of_recomputation_holds_for_all_layers() -> None:
    groups = read_layout("tp=2", question_of("llama3-8b", Runtime.MEGATRON)).layout.groups
    selective = groups.replace(recompute=Recompute.SELECTIVE)
    assert recomputes_layers(Runtime.MEGATRON, groups)
    assert not recomputes_layers(Runtime.MEGATRON, selective)
    assert recomputes_layers(Runtime.SYNTH, selective)


def test_a_schedule_of_another_runtime_is_refused() -> None:
    with pytest.raises(SynthError, match="does not run it"):
        read_layout("pp=2,schedule=zb-h1", question_of("llama3-8b", Runtime.MEGATRON))
