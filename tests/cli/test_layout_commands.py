"""The commands and options of a layout: those of Megatron-LM and torchtitan say what was judged."""

import json
import shlex
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest

from synth.cli.answer.layout_commands import commands
from synth.interop.export_format import ExportFormat
from synth.interop.exported import losses
from synth.layouts.judge import LayoutJudge
from synth.layouts.named_layout import read_layout
from synth.options.arguments.plan import LayoutArguments
from synth.options.layout_task import read_layout_task
from synth.profile import Profile
from synth.profile.mesh import DeviceGroup
from synth.schedule.files.plan_file import Plan
from synth.schedule.placements import placement
from tests.cli.conftest import Synth

DENSE = {
    "model_type": "llama",
    **{"hidden_size": 512, "num_hidden_layers": 6, "num_attention_heads": 4},
    **{"num_key_value_heads": 4, "intermediate_size": 1536, "vocab_size": 8192},
}
EXPERTS = {
    "model_type": "mixtral",
    **{"hidden_size": 512, "num_hidden_layers": 6, "num_attention_heads": 4},
    **{"num_key_value_heads": 4, "intermediate_size": 1024, "vocab_size": 8192},
    **{"num_local_experts": 4, "num_experts_per_tok": 2},
}


def commands_of(
    folder: Path,
    model: dict[str, object],
    text: str,
    options: Mapping[str, object],
    output: Path | None = None,
) -> dict[str, str]:
    path = folder / "model.json"
    path.write_text(json.dumps(model))
    asked = {"gpus": 8, "global_batch": 24, "seq_len": 1024, **options}
    task = read_layout_task(
        LayoutArguments.model_validate({"model": str(path), "device": "h100", **asked})
    )
    named = read_layout(text, task.question)
    judged = LayoutJudge(task.question).best(named.layout, name=named.schedule)
    assert judged is not None
    if output is not None:
        judged.plan.save(output)
    return dict(commands(task, judged, output))


@pytest.mark.parametrize(
    ("model", "text", "options", "words", "absent"),
    [
        (DENSE, "tp=2,pp=2", {}, ("--bf16", "--use-distributed-optimizer"), ("fp8", "recompute")),
        (
            DENSE,
            "tp=2",
            {"dtype": "fp8"},
            ("--bf16 --fp8-format hybrid",),
            ("group-size", "--fp8-param-gather"),
        ),
        (
            DENSE,
            "tp=2",
            {"dtype": "fp8", "fp8_param_gather": True},
            ("--bf16 --fp8-format hybrid --fp8-param-gather", "--use-distributed-optimizer"),
            (),
        ),
        (
            DENSE,
            "pp=1,sharding=fsdp",
            {"dtype": "fp8", "fp8_param_gather": True, "optimizer": "adamw+master"},
            ("--use-torch-fsdp2",),
            ("--fp8-param-gather",),
        ),
        (
            DENSE,
            "pp=1,sharding=fsdp",
            {"optimizer": "adamw+master"},
            (
                "--use-torch-fsdp2 --no-gradient-accumulation-fusion --ckpt-format torch_dist "
                "--untie-embeddings-and-output-weights",
            ),
            ("--use-distributed-optimizer", "--overlap-grad-reduce"),
        ),
        (DENSE, "cp=4,pp=2", {}, ("--overlap-grad-reduce --overlap-param-gather",), ()),
        (DENSE, "pp=8", {}, (), ("--overlap-grad-reduce", "--overlap-param-gather")),
        (
            DENSE,
            "pp=2,dp=4,vp=2",
            {"global_batch": 28},
            ("--microbatch-group-size-per-virtual-pipeline-stage 4",),
            (),
        ),
        (
            DENSE,
            "pp=2,recompute=selective",
            {"software": "megatron-2021"},
            ("--recompute-granularity selective",),
            ("full",),
        ),
        (
            DENSE,
            "pp=2,recompute=full",
            {},
            ("--recompute-granularity full --recompute-method uniform --recompute-num-layers 1",),
            (),
        ),
        (
            DENSE,
            "tp=2",
            {},
            ("--tp-comm-overlap", "--attention-dropout 0", "--overlap-param-gather"),
            ("--grad-reduce-in-bf16", "moe", "--attention-backend", "--no-overlap-p2p"),
        ),
        (DENSE, "pp=2", {"optimizer": "adamw+master"}, ("--grad-reduce-in-bf16",), ("tp-comm",)),
        (
            DENSE,
            "pp=4,vp=2",
            {"software": "megatron-2021", "optimizer": "sgd:0.9+master+float32-gradients"},
            (
                "--optimizer sgd --sgd-momentum 0.9",
                "--attention-backend unfused",
                "--no-overlap-p2p-communication",
            ),
            ("--overlap-grad-reduce", "--overlap-param-gather"),
        ),
        (DENSE, "pp=2,vp=2", {"software": "megatron-2021"}, ("none: Megatron-LM overlaps",), ()),
        (DENSE, "pp=2", {"optimizer": "adamw"}, ("none: Megatron-LM has float32 copies",), ()),
        (
            EXPERTS,
            "ep=2",
            {"software": "megatron-graphs"},
            (
                "--moe-flex-dispatcher-backend deepep",
                "--cuda-graph-impl transformer_engine --cuda-graph-scope attn moe_router "
                "moe_preprocess",
            ),
            ("alltoall",),
        ),
        (
            EXPERTS,
            "ep=2,recompute=full",
            {"software": "megatron-graphs"},
            ("none: Megatron-LM has no CUDA graphs of layers that it recomputes",),
            (),
        ),
        (EXPERTS, "pp=2", {}, ("--moe-token-dispatcher-type alltoall",), ("flex", "cuda-graph")),
        (EXPERTS, "ep=2", {"software": "megatron-plain"}, ("alltoall",), ("deepep", "overlap")),
        (EXPERTS, "tp=2", {}, ("--expert-tensor-parallel-size 1",), ("--expert-model",)),
        (EXPERTS, "ep=2", {}, ("--expert-model-parallel-size 2",), ("--expert-tensor",)),
        (EXPERTS, "tp=2,ep=2,etp=2", {}, ("size 2 --expert-tensor-parallel-size 2",), ()),
        (EXPERTS, "ep=2,etp=4", {}, ("size 2 --expert-tensor-parallel-size 4",), ()),
    ],
)
def test_megatron_gets_what_was_judged(
    tmp_path: Path,
    model: dict[str, object],
    text: str,
    options: dict[str, object],
    words: tuple[str, ...],
    absent: tuple[str, ...],
) -> None:
    found = commands_of(tmp_path, model, text, {"runtime": "megatron", **options})["megatron"]
    assert all(each in found for each in words), found
    assert not any(each in found for each in absent), found


PAIRS = "--overlap-moe-expert-parallel-comm --delay-wgrad-compute"


def test_megatron_runs_pairs_where_they_were_judged(tmp_path: Path) -> None:
    """And no search of orders is offered, which would end with one without pairs."""
    sizes, plan = "pp=2,vp=2,ep=4", tmp_path / "plan.json"
    asked = {"runtime": "megatron", "mem_limit": "none", "software": "megatron-graphs"}
    paired = commands_of(
        tmp_path, EXPERTS, f"{sizes},schedule=interleaved:2,overlap", asked, output=plan
    )
    apart = commands_of(tmp_path, EXPERTS, f"{sizes},schedule=interleaved:2", asked)
    assert PAIRS in paired["megatron"] and PAIRS not in apart["megatron"]
    assert "solve" in apart and not {"solve", "search longer"} & {*paired}
    notes = losses(Plan.load(plan), "plan.json", ExportFormat.MEGATRON, {})
    assert any(PAIRS in note for note in notes)


@pytest.mark.parametrize("runtime", ["megatron", "torchtitan"])
def test_programs_are_launched_on_the_nodes_of_the_question(tmp_path: Path, runtime: str) -> None:
    asked = {"runtime": runtime, "gpus": 8}
    found = commands_of(tmp_path, DENSE, "tp=2,pp=2", {**asked, "nodes": 4})
    assert found["launch"].endswith("torchrun --nnodes 4 --nproc-per-node 2")
    assert "--gpus-per-node 2" in found["estimate"]
    usual = commands_of(tmp_path, DENSE, "pp=2", asked)
    assert usual["launch"] == "torchrun --nnodes 1 --nproc-per-node 8"
    assert "per-node" not in usual["estimate"]


@pytest.mark.parametrize(
    ("text", "options", "is_set"),
    [
        ("tp=2", {}, True),
        ("cp=2", {}, True),
        ("pp=2", {}, False),
        ("tp=2", {"device": "b200"}, False),
        ("tp=2", {"runtime": "torchtitan"}, False),
        ("tp=2,sharding=fsdp", {"optimizer": "adamw+master"}, False),
    ],
)
def test_megatron_has_one_connection_where_it_asserts_that(
    tmp_path: Path, text: str, options: dict[str, object], is_set: bool
) -> None:
    found = commands_of(tmp_path, DENSE, text, {"runtime": "megatron", **options})["launch"]
    assert found.startswith("CUDA_DEVICE_MAX_CONNECTIONS=1 torchrun") is is_set


def test_the_estimate_of_the_commands_has_the_nodes_that_were_judged(
    synth: Synth, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = commands_of(tmp_path, DENSE, "pp=8", {"nodes": 4})
    _, *words = shlex.split(found["estimate"])
    assert synth(*words).code == 0
    links = Profile.load("layout.json").links
    assert links.nodes is not None
    assert [node.ranks_per_node for node in links.nodes] == [2]


def test_the_estimate_of_the_commands_divides_experts_as_was_judged(
    synth: Synth, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = commands_of(tmp_path, EXPERTS, "tp=2,pp=2,ep=2,etp=2", {})
    assert "--ep 2 --etp 2 --dp 2" in found["estimate"]
    _, *words = shlex.split(found["estimate"])
    assert synth(*words).code == 0
    group = Profile.load("layout.json").workload.group
    assert group == DeviceGroup(tensor=2, sequence=True, expert=2, expert_tensor=2, data=2)


def test_torchtitan_has_no_pipeline_with_one_rank(tmp_path: Path) -> None:
    found = commands_of(tmp_path, DENSE, "tp=2,sharding=none", {"runtime": "torchtitan"})
    data = tomllib.loads(found["torchtitan"])
    assert data["training"] == {
        "local_batch_size": 1,
        "global_batch_size": 24,
        "seq_len": 1024,
        "mixed_precision_param": "bfloat16",
        "mixed_precision_reduce": "float32",
    }
    assert data["compile"] == {"enable": True, "components": ["model", "loss"]}
    assert "model" not in data
    degrees = data["parallelism"]
    assert not [name for name in degrees if "pipeline" in name or "module" in name]
    assert degrees["data_parallel_replicate_degree"] == 4
    assert degrees["data_parallel_shard_degree"] == 1
    assert {"solve", "export"}.isdisjoint(found)


def test_torchtitan_has_the_whole_batch_with_a_pipeline(tmp_path: Path) -> None:
    output = tmp_path / "chosen.json"
    options = {"runtime": "torchtitan"}
    found = commands_of(tmp_path, DENSE, "pp=2,recompute=ops,schedule=1f1b", options, output)
    data = tomllib.loads(found["torchtitan"])
    assert data["training"]["local_batch_size"] == 6
    assert data["training"]["global_batch_size"] == 24
    assert data["parallelism"]["pipeline_parallel_schedule_csv"] == str(tmp_path / "chosen.csv")
    assert data["activation_checkpoint"] == {
        "mode": "selective",
        "selective_ac_option": "op",
        "early_stop": True,
    }
    assert found["export"] == f"synth export {output} -o {tmp_path / 'chosen.csv'}"
    assert f"--hint {output}" in found["search longer"] and "solve" not in found


def test_a_longer_search_begins_with_the_partition_of_the_plan(tmp_path: Path) -> None:
    output = tmp_path / "chosen.json"
    words = shlex.split(commands_of(tmp_path, DENSE, "pp=4", {}, output)["search longer"])
    given = {words[at]: words[at + 1] for at in range(3, len(words), 2)}
    plan = Plan.load(output)
    assert given["--hint"] == str(output)
    assert given["--partition"] == ",".join(map(str, plan.partition))
    assert tuple(plan.placement) == placement(given["--placement"], 4).ranks


def test_torchtitan_has_the_dtypes_that_were_judged(tmp_path: Path) -> None:
    options = {"runtime": "torchtitan", "dtype": "fp8"}
    found = commands_of(tmp_path, DENSE, "tp=2", options)
    data = tomllib.loads(found["torchtitan"])
    assert data["training"]["mixed_precision_reduce"] == "float32"
    assert data["model"]["converters"] == ["quantize.linear.float8"]
    assert data["quantize"]["linear"]["float8"]["filter_fqns"] == ["output"]
    assert data["activation_checkpoint"] == {"mode": "none"}


def test_torchtitan_has_float8_of_experts_without_a_pipeline(tmp_path: Path) -> None:
    options = {"runtime": "torchtitan", "dtype": "fp8"}
    data = tomllib.loads(commands_of(tmp_path, EXPERTS, "ep=2", options)["torchtitan"])
    assert data["model"]["converters"] == ["quantize.linear.float8", "quantize.grouped_mm.float8"]
    assert data["quantize"]["linear"]["float8"]["filter_fqns"] == ["output", "router.gate"]
    assert data["quantize"]["grouped_mm"]["float8"]["fqns"] == ["experts"]


@pytest.mark.parametrize("optimizer", ["sgd:0.9", "adamw+master", "adamw"])
def test_torchtitan_has_parameters_and_gradients_in_float32(tmp_path: Path, optimizer: str) -> None:
    options = {"runtime": "torchtitan", "optimizer": optimizer}
    found = commands_of(tmp_path, DENSE, "tp=2", options)["torchtitan"]
    assert found.startswith("none: torchtitan has AdamW with parameters and gradients in float32")


@pytest.mark.parametrize(("software", "is_there"), [("megatron", True), ("torchtitan", False)])
def test_torchtitan_hides_and_sends_what_another_estimate_does(
    tmp_path: Path, software: str, is_there: bool
) -> None:
    options = {"runtime": "torchtitan", "software": software}
    found = commands_of(tmp_path, EXPERTS, "tp=2,ep=2", options)["torchtitan"]
    assert found.startswith("# for torchtitan 0.3.0")
    data = tomllib.loads(found)
    assert data["compile"].get("enable_async_tensor_parallel", False) is is_there
    assert (data.get("model_registry") == {"moe_comm_backend": "deepep"}) is is_there


def test_torchtitan_keeps_parameters_whole_that_context_parallelism_shares(tmp_path: Path) -> None:
    found = commands_of(tmp_path, DENSE, "cp=8", {"runtime": "torchtitan"})
    degrees = tomllib.loads(found["torchtitan"])["parallelism"]
    assert degrees["data_parallel_shard_degree"] == 1
    assert degrees["fsdp_reshard_after_forward"] == "never"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("runtime", "made"), [("torchtitan", "plan.csv"), ("megatron", None), ("synth", None)]
)
def test_the_commands_run(
    synth: Synth,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    runtime: str,
    made: str | None,
) -> None:
    monkeypatch.chdir(tmp_path)
    found = commands_of(tmp_path, DENSE, "tp=2,pp=2", {"runtime": runtime}, Path("plan.json"))
    assert ("export" in found) == (runtime != "synth")
    limits = ("--time-limit", "3s", "--workers", "1")
    for name, more in (("estimate", ()), ("search longer", limits), ("export", ())):
        if name in found:
            program, *words = shlex.split(found[name])
            ran = synth(*words, *more)
            assert (program, ran.code) == ("synth", 0), ran.stderr
    before, after = (
        Plan.load(name).claim.makespan_us for name in ("plan.json", "plan-longer.json")
    )
    assert after <= before or runtime == "megatron"
    assert made is None or (tmp_path / made).exists()
