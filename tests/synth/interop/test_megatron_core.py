"""Megatron Core reads what synth writes for Megatron-LM, and has the orders that synth takes.

Tested with 0.16.1, which needs no CUDA for this; the options of its training program, which the
package does not contain, are those of Megatron-LM's `arguments.py`.
"""

import shlex
import warnings
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from synth.families import generate
from synth.interop.megatron import to_megatron
from tests.cli.test_layout_commands import DENSE, EXPERTS, commands_of
from tests.synth.interop.test_other_frameworks import plan_of

torch = pytest.importorskip("torch")
pytest.importorskip("megatron.core")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of packages that Megatron Core misses
    import megatron.core.pipeline_parallel.schedules as schedules
    import megatron.core.transformer.moe.moe_utils as moe_utils
    from megatron.core.distributed import DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig
    from megatron.core.transformer import TransformerConfig, transformer_config
    from megatron.core.transformer.enums import AttnBackend, CudaGraphScope
    from megatron.core.transformer.pipeline_parallel_layer_layout import PipelineParallelLayerLayout


def forwards_and_backwards(
    ranks: int, chunks: int, count: int, group: int, rank: int
) -> list[tuple[str, int, int]]:
    """Return (F or BW, stage, micro-batch) of a rank, as Megatron's two loops run them."""
    among = SimpleNamespace(size=lambda: ranks, rank=lambda: rank)
    links = SimpleNamespace(
        pp_group=among, virtual_pipeline_model_parallel_size=chunks if chunks > 1 else None
    )
    numbers = schedules.get_pp_rank_microbatches(count, chunks, group, p2p_communicator=links)
    total, _, warm_up, _ = numbers
    table = schedules.get_schedule_table(count, chunks, group)
    forwards = [("F", chunk * ranks + rank, m) for m, chunk in table]
    backwards = [("BW", (chunks - 1 - chunk) * ranks + rank, m) for m, chunk in table]
    steady = [op for pair in zip(forwards[warm_up:], backwards, strict=False) for op in pair]
    return forwards[:warm_up] + steady + backwards[total - warm_up :]


@pytest.mark.parametrize(
    ("family", "ranks", "chunks", "count", "group"),
    [
        ("1f1b", 4, 1, 8, 4),
        ("1f1b", 4, 1, 2, 4),
        ("interleaved:2", 4, 2, 8, 4),
        ("interleaved:3", 2, 3, 6, 2),
        ("interleaved:2,group=4", 2, 2, 12, 4),
        ("interleaved:2,group=3", 2, 2, 7, 3),
    ],
)
def test_the_order_of_1f1b_is_that_of_megatrons_loops(
    family: str, ranks: int, chunks: int, count: int, group: int
) -> None:
    programs = generate(family, ranks, count).programs
    for rank, program in enumerate(programs):
        ops = [(str(op.kind), op.stage, op.microbatch) for op in program if op.kind != "STEP"]
        assert ops == forwards_and_backwards(ranks, chunks, count, group, rank)


def test_layers_of_multi_token_prediction_are_on_one_stage() -> None:
    plan = plan_of("interleaved:3", ranks=2, partition="3,4,5,5,4,3")
    layout = to_megatron(plan.replace(layers=(*plan.layers[:-2], "mtp", plan.layers[-1])))
    parsed = PipelineParallelLayerLayout(layout, 2)
    parsed.validate_layer_layout(num_layers=21, mtp_num_layers=1)
    assert [kind.name for kind in parsed.layout[1][2]] == ["decoder", "mtp", "loss"]


# Fields whose names are others than those of the options.
RENAMED = {
    "seq_length": "",
    "micro_batch_size": "",
    "global_batch_size": "",
    "ckpt_format": "",
    "use_torch_fsdp2": "",
    "untie_embeddings_and_output_weights": "",
    "microbatch_group_size_per_virtual_pipeline_stage": "microbatch_group_size_per_vp_stage",
    "fp8_format": "fp8",
    "fp4_format": "fp4",
    "no_gradient_accumulation_fusion": "gradient_accumulation_fusion",
    "no_overlap_p2p_communication": "overlap_p2p_comm",
    "grad_reduce_in_bf16": "grad_reduce_in_fp32",
}

OF_TRANSFORMER_ENGINE = (
    "fused_permute",
    "fused_permute_with_probs",
    "fused_sort_chunks_by_index",
    "fused_sort_chunks_by_index_with_probs",
    "fused_unpermute",
)


def values_of(options: str) -> dict[str, Any]:
    """Return the values of Megatron-LM's options, by the fields that they set."""
    found: dict[str, Any] = {}
    words = shlex.split(options)
    names = [place for place, word in enumerate(words) if word.startswith("--")]
    for place, end in zip(names, [*names[1:], len(words)], strict=True):
        option = words[place][2:].replace("-", "_")
        given = [int(w) if w.isdigit() else w for w in words[place + 1 : end]]
        is_off = option.startswith("no_") or option == "grad_reduce_in_bf16"
        if name := RENAMED.get(option, option):
            found[name] = given if given[1:] else (given or [not is_off])[0]
    for name in ("attention_dropout", "hidden_dropout", "sgd_momentum"):
        if name in found:
            found[name] = float(found[name])
    return found


@pytest.mark.parametrize(
    ("model", "text", "options"),
    [
        (DENSE, "tp=2,pp=2", {}),
        (DENSE, "tp=2", {"dtype": "fp8"}),
        (DENSE, "tp=2", {"dtype": "fp8", "fp8_param_gather": True}),
        (DENSE, "pp=1,sharding=fsdp", {"optimizer": "adamw+master"}),
        (DENSE, "cp=4,pp=2", {}),
        (DENSE, "pp=8", {}),
        (DENSE, "pp=2,dp=4,vp=2", {"global_batch": 28}),
        (DENSE, "pp=2,recompute=selective", {"software": "megatron-2021"}),
        (DENSE, "pp=2,recompute=full", {}),
        (DENSE, "pp=2", {"optimizer": "adamw+master"}),
        (
            DENSE,
            "pp=4,vp=2",
            {"software": "megatron-2021", "optimizer": "sgd:0.9+master+float32-gradients"},
        ),
        (EXPERTS, "ep=2", {"software": "megatron-graphs"}),
        (EXPERTS, "pp=2", {}),
        (EXPERTS, "tp=2", {}),
        (EXPERTS, "tp=2,ep=2,etp=2", {}),
        (EXPERTS, "pp=2,ep=2,vp=2", {"software": "megatron-graphs", "mem_limit": "none"}),
    ],
)
def test_megatrons_configs_take_the_options_of_a_layout(
    model: dict[str, object],
    text: str,
    options: dict[str, object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in OF_TRANSFORMER_ENGINE:  # as if it were installed
        monkeypatch.setattr(moe_utils, name, len, raising=False)
    monkeypatch.setattr(transformer_config, "is_te_min_version", lambda *_, **__: True)
    written = commands_of(tmp_path, model, text, {"runtime": "megatron", **options})["megatron"]
    values = values_of(written)
    configs: dict[Any, dict[str, Any]] = {
        DistributedDataParallelConfig: {},
        OptimizerConfig: {"lr": 1e-3},
        TransformerConfig: shape_of(model),
    }
    for name, value in values.items():
        taking = [each for each in configs if name in {field.name for field in fields(each)}]
        assert taking, f"{name} is no field of Megatron Core's configs"
        for config in taking:
            configs[config][name] = value
    made = {each: make(each, keywords) for each, keywords in configs.items()}
    config = made[TransformerConfig]
    if (layout := config.pipeline_model_parallel_layout) is not None:
        chunks = range(layout.virtual_pipeline_model_parallel_size)
        ranks = range(config.pipeline_model_parallel_size)
        built = [
            layout.get_num_layers_to_build(vp_stage=v, pp_rank=r) for r in ranks for v in chunks
        ]
        assert sum(built) == config.num_layers


def shape_of(model: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a model's sizes, as a user gives them."""
    found = {
        "num_layers": model["num_hidden_layers"],
        "hidden_size": model["hidden_size"],
        "num_attention_heads": model["num_attention_heads"],
        "ffn_hidden_size": model["intermediate_size"],
        "add_bias_linear": False,
        "gated_linear_unit": True,
    }
    if "num_local_experts" in model:
        found |= {
            "num_moe_experts": model["num_local_experts"],
            "moe_router_topk": model["num_experts_per_tok"],
        }
    return found


def make(config: Any, keywords: dict[str, Any]) -> Any:
    """Make a config as `core_transformer_config_from_args` does, with what it adds."""
    if config is TransformerConfig:
        keywords["pipeline_dtype"] = torch.bfloat16
        keywords["params_dtype"] = torch.bfloat16
        if "attention_backend" in keywords:
            keywords["attention_backend"] = AttnBackend[keywords["attention_backend"]]
        if "cuda_graph_scope" in keywords:
            keywords["cuda_graph_scope"] = [CudaGraphScope[s] for s in keywords["cuda_graph_scope"]]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of versions to come
        return config(**keywords)
