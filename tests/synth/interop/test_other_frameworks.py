"""Plans for torchtitan, Megatron-LM and JaxPP, read by their real parsers where these install."""

import ast
import importlib
import re
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from types import ModuleType
from typing import Any, NamedTuple

import pytest

import synth
from synth.errors import SynthError
from synth.interop.export_format import ExportFormat
from synth.interop.exported import losses
from synth.interop.jaxpp import to_jaxpp
from synth.interop.megatron import megatron_parts, to_megatron
from synth.interop.recomputation import megatron_recomputation, torchtitan_checkpointing
from synth.interop.torch_csv import to_torch_csv
from synth.interop.torchtitan import schedule_name, to_torchtitan, torchtitan_parts
from synth.profile.mesh import DeviceGroup

NAME = "zb-1.5b-p8-m24"  # an embedding, 22 blocks and a head


def plan_of(family: str, ranks: int = 4, partition: str = "even") -> synth.Plan:
    return synth.simulate(family, NAME, ranks=ranks, micro_batches=2 * ranks, partition=partition)


def flattened(layout: str) -> list[str]:
    """Stages of a layout, by the grammar of Megatron Core's page on custom layouts."""
    text = re.sub(r"\(([^)]+)\)\*(\d+)", lambda m: m[1] * int(m[2]), layout)
    return re.sub(r"(.)\*(\d+)", lambda m: m[1] * int(m[2]), text).split("|")


def test_megatrons_layout_is_the_partition() -> None:
    plan = plan_of("1f1b", partition="5,7,7,5")
    assert to_megatron(plan) == "Et*4|(t*7|)*2t*4L"
    assert flattened(to_megatron(plan)) == ["Etttt", "ttttttt", "ttttttt", "ttttL"]


def test_megatrons_stages_are_counted_over_the_ranks_first() -> None:
    plan = plan_of("interleaved:2", ranks=2, partition="1,2,20,1")
    assert flattened(to_megatron(plan)) == ["E", "tt", "t" * 20, "L"]


def test_a_layout_of_one_stage_has_the_embedding_and_the_head() -> None:
    assert to_megatron(plan_of("gpipe", ranks=1)) == "Et*22L"


def test_megatrons_own_parser_reads_the_layout() -> None:
    layout = pytest.importorskip("megatron.core.transformer.pipeline_parallel_layer_layout")
    plan = plan_of("interleaved:3", ranks=2, partition="3,4,5,5,4,3")
    parsed = layout.PipelineParallelLayerLayout(to_megatron(plan), 2)
    parsed.validate_layer_layout(num_layers=22, mtp_num_layers=0)
    by_rank = [[[kind.name for kind in stage] for stage in rank] for rank in parsed.layout]
    assert [len(stage) for stage in by_rank[0]] == [3, 5, 4]
    assert by_rank[1][2] == ["decoder", "decoder", "loss"]


def recomputing_plan(layers: tuple[int, ...], partition: str = "6,6,6,6") -> synth.Plan:
    listed = f"layers:{','.join(map(str, layers))}" if layers else "none"
    return synth.solve(
        NAME,
        ranks=4,
        micro_batches=4,
        placement="linear",
        partition=partition,
        recompute=listed,
        time_limit=0.05,
        deterministic=True,
        workers=1,
    )


@pytest.mark.parametrize(
    ("layers", "section"),
    [
        ((), {"mode": "none"}),
        (tuple(range(1, 23)), {"mode": "full", "early_stop": True}),
        # Rank 0 counts blocks from layer 1 on, the others from their first layer.
        (
            (3, 8, 11, 14, 17, 20),
            {"mode": "selective", "selective_ac_option": "3", "early_stop": True},
        ),
        ((1, 2), None),
    ],
)
def test_recomputed_layers_are_torchtitans_options_where_it_has_a_rule_for_them(
    layers: tuple[int, ...], section: dict[str, str] | None
) -> None:
    options = tomllib.loads(to_torchtitan(recomputing_plan(layers), "plan.csv"))
    assert options.get("activation_checkpoint") == section


@pytest.mark.parametrize(
    ("layers", "options"),
    [
        ((), None),
        (tuple(range(1, 23)), "uniform --recompute-num-layers 1"),
        # Layer 0 is the embedding.
        ((1, 2, 6, 7, 12, 13, 18, 19), "block --recompute-num-layers 2"),
        ((1, 2), None),
    ],
)
def test_recomputed_layers_are_megatrons_options_where_it_has_a_rule_for_them(
    layers: tuple[int, ...], options: str | None
) -> None:
    plan = recomputing_plan(layers)
    found = megatron_recomputation(plan, megatron_parts(plan, {}))
    told = "--recompute-granularity full --recompute-method"
    assert found == (None if options is None else f"{told} {options}")


@pytest.mark.parametrize(
    ("policies", "section", "options"),
    [
        (
            {"ops": range(1, 23)},
            {"mode": "selective", "selective_ac_option": "op", "early_stop": True},
            None,
        ),
        ({"selective": range(1, 23)}, None, "selective --recompute-modules core_attn"),
        ({"ops": range(1, 12), "selective": range(12, 23)}, None, None),
        ({"ops": range(1, 22)}, None, None),
        ({"model.py:mine": range(1, 23)}, None, None),
    ],
)
def test_policies_of_every_decoder_layer_are_options_of_the_framework_that_has_them(
    policies: dict[str, range], section: dict[str, str] | None, options: str | None
) -> None:
    listed = {policy: tuple(at) for policy, at in policies.items()}
    places = tuple(range(1, 1 + sum(map(len, listed.values()))))
    plan = recomputing_plan(()).replace(recomputed_layers=places, recompute_policies=listed)
    written = tomllib.loads(to_torchtitan(plan, "plan.csv"))
    assert written.get("activation_checkpoint") == section
    found = megatron_recomputation(plan, megatron_parts(plan, {}))
    assert found == (options and f"--recompute-granularity {options}")
    notes = list(losses(plan, "plan.json", ExportFormat.TORCHTITAN, {}))
    assert any("which the format does not say" in note for note in notes) is (section is None)
    assert section is not None or any(f"({next(iter(listed))})" in note for note in notes)


def test_layers_that_the_user_names_are_recomputed_as_what_they_are_there() -> None:
    made = recomputing_plan(tuple(range(24)))
    plan = made.replace(layers=("stem", *made.layers[1:-1], "classifier"))
    named = {"stem": "tok_embeddings", "classifier": "output"}
    assert torchtitan_checkpointing(plan, torchtitan_parts(plan, named)) is None
    blocks = plan.replace(recomputed_layers=tuple(range(1, 23)))
    section = torchtitan_checkpointing(blocks, torchtitan_parts(plan, named))
    assert section == ["[activation_checkpoint]", 'mode = "full"', "early_stop = true"]
    letters = megatron_parts(plan, {"stem": "E", "classifier": "L"})
    assert megatron_recomputation(plan, letters) is None
    assert "uniform" in str(megatron_recomputation(blocks, letters))


def test_the_groups_of_a_plan_are_options_or_a_note() -> None:
    plan = plan_of("1f1b")
    group = DeviceGroup(tensor=4, sequence=True, context=2, expert=2)
    grouped = plan.replace(workload=plan.workload.replace(group=group))
    degrees = tomllib.loads(to_torchtitan(grouped, "plan.csv"))["parallelism"]
    sizes = [degrees[f"{name}_parallel_degree"] for name in ("tensor", "context", "expert")]
    assert sizes == [4, 2, 2]
    assert "tensor_parallel_degree" not in to_torchtitan(plan, "plan.csv")
    (note,) = _notes_of_groups(grouped, ExportFormat.MEGATRON)
    assert note.endswith(
        "groups of 8 devices (tp 4 with sequence parallelism, cp 2, ep 2), which the format does "
        "not say; give Megatron-LM --tensor-model-parallel-size 4 --sequence-parallel "
        "--context-parallel-size 2 --expert-model-parallel-size 2 --expert-tensor-parallel-size 1"
    )
    (note,) = _notes_of_groups(grouped, ExportFormat.TORCH)
    assert note.endswith("; divide the layers of each stage over these devices")
    assert not _notes_of_groups(grouped, ExportFormat.TORCHTITAN)
    alone = plan.replace(workload=plan.workload.replace(group=DeviceGroup(expert=8, data=16)))
    (note,) = (
        note for note in losses(alone, "p.json", ExportFormat.TORCH, {}) if "experts" in note
    )
    assert note == (
        "note: the experts of p.json are divided over 8 data-parallel ranks (ep 8, dp 16), which "
        "the format does not say; divide those of each stage so"
    )
    assert not _notes_of_groups(plan, ExportFormat.MEGATRON)


@pytest.mark.parametrize(
    ("group", "option"),
    [
        (DeviceGroup(tensor=4, expert_tensor=1), "--expert-tensor-parallel-size 1"),
        (DeviceGroup(tensor=4, expert_tensor=4), "--expert-tensor-parallel-size 4"),
        (DeviceGroup(tensor=4), None),
        (DeviceGroup(context=2, expert_tensor=1), None),
        (DeviceGroup(data=2, expert_tensor=2), "--expert-tensor-parallel-size 2"),
    ],
)
def test_megatron_divides_experts_as_other_matrices_unless_an_option_says_otherwise(
    group: DeviceGroup, option: str | None
) -> None:
    """Its default of expert tensor parallelism is the size of tensor parallelism."""
    plan = plan_of("1f1b")
    grouped = plan.replace(workload=plan.workload.replace(group=group))
    notes = " ".join(losses(grouped, "plan.json", ExportFormat.MEGATRON, {}))
    assert "--tensor-model-parallel-size" in notes
    assert ("--expert-tensor-parallel-size" in notes) == (option is not None)
    assert option is None or option in notes


def _notes_of_groups(plan: synth.Plan, to: ExportFormat) -> list[str]:
    return [note for note in losses(plan, "plan.json", to, {}) if "groups of" in note]


@pytest.mark.parametrize("family", ["zb-v", "chimera"])
def test_megatron_has_no_other_placement(family: str) -> None:
    with pytest.raises(SynthError, match=r"rank s mod P|2 copies"):
        to_megatron(plan_of(family))


def test_torchtitans_options_are_toml_with_every_module_once() -> None:
    plan = plan_of("zb-h1", partition="5,7,7,5")
    options = tomllib.loads(to_torchtitan(plan, "plan.csv"))
    parallelism = options["parallelism"]
    parts = parallelism["module_fqns_per_model_part"]
    assert [len(part) for part in parts] == [5, 7, 7, 7]  # three are the head
    blocks = [f"layers.{i}" for i in range(22)]
    modules = [module for part in parts for module in part]
    assert modules == ["tok_embeddings", *blocks, "norm", "output", "lm_head"]
    assert parallelism["pipeline_parallel_degree"] == 4
    assert parallelism["pipeline_parallel_schedule_csv"] == "plan.csv"
    size = parallelism["pipeline_parallel_microbatch_size"]
    assert options["training"]["local_batch_size"] == 8 * size


@pytest.mark.parametrize("family", ["1f1b", "interleaved:3", "zb-v"])
def test_torchtitan_places_the_stages_as_the_plan(family: str) -> None:
    """By the rule of torchtitan's `pipeline_module_split`, with PyTorch's classes."""
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    plan = plan_of(family)
    count, ranks = len(plan.partition), plan.num_ranks
    is_v = schedules.get_schedule_class(schedule_name(plan)) is schedules.ScheduleZBVZeroBubble
    for rank in range(ranks):
        looped = tuple(range(rank, count, ranks))
        expected = (rank, count - 1 - rank) if is_v else looped
        assert tuple(s for s in range(count) if plan.placement[0][s] == rank) == expected


def test_torchtitan_has_no_other_placement() -> None:
    with pytest.raises(SynthError, match="no placement as that of"):
        schedule_name(plan_of("hanayo:2", ranks=2))


class TaskType(Enum):
    FWD = 1
    BWD = 2
    BWD_I = 3
    BWD_W = 4


class Task(NamedTuple):
    stage_id: int
    mubatch_idx: int
    kind: Any

    @classmethod
    def make(cls, stage_id: int, mubatch_idx: int, kind: Any) -> "Task":
        return cls(stage_id, mubatch_idx, kind)


class Fused(tuple[Task, ...]):
    pass


@pytest.fixture
def jaxpp(monkeypatch: pytest.MonkeyPatch) -> None:
    """JaxPP itself, or else the names of it that a schedule uses, as its source defines them."""
    try:
        importlib.import_module("jaxpp.schedules")
    except ImportError:
        schedules: Any = ModuleType("jaxpp.schedules")
        types: Any = ModuleType("jaxpp.types")

        @dataclass(eq=True, frozen=True)
        class BaseSchedule:
            num_stages: int
            is_partial_bwd: bool = field(default=False, init=False)

            def __post_init__(self) -> None:
                assert self.num_stages > 0

        def check(tasks: list[Any], first_stage: int) -> None:
            """Hold the rule of `check_and_strip_adjecent_bwd_a_bwd_w`, which also fuses."""
            for task, behind in pairwise(tasks):
                if isinstance(task, Task):
                    needs = (first_stage, TaskType.BWD_W)
                    is_parted = not isinstance(behind, Task) or (behind[0], behind[2]) != needs
                    if (task[0], task[2]) == (first_stage, TaskType.BWD_I) and is_parted:
                        raise NotImplementedError(f"{task} is not followed by its BWD_W")
                else:
                    check([*task], first_stage)

        schedules.check_and_strip_adjecent_bwd_a_bwd_w = check
        schedules.BaseSchedule, schedules.FusedTask, schedules.Task = BaseSchedule, Fused, Task
        types.MpmdIdx = int
        types.TaskType = TaskType
        for name, module in (("jaxpp", ModuleType("jaxpp")), ("jaxpp.schedules", schedules)):
            monkeypatch.setitem(sys.modules, name, module)
        monkeypatch.setitem(sys.modules, "jaxpp.types", types)


def tasks_of(plan: synth.Plan) -> tuple[Any, list[list[Any]]]:
    found: dict[str, Any] = {"__name__": __name__}
    exec(to_jaxpp(plan, "1"), found)
    schedule = found["SynthSchedule"](num_stages=len(plan.partition))
    tasks = schedule.tasks(plan.num_micro_batches)
    for program in tasks:
        sys.modules["jaxpp.schedules"].check_and_strip_adjecent_bwd_a_bwd_w(program, 0)
    return schedule, tasks


@pytest.mark.usefixtures("jaxpp")
@pytest.mark.parametrize(("family", "is_split"), [("1f1b", False), ("zb-h1", True), ("zb-v", True)])
def test_jaxpp_gets_every_op_in_order_on_its_rank(family: str, is_split: bool) -> None:
    plan = plan_of(family)
    schedule, tasks = tasks_of(plan)
    assert schedule.is_partial_bwd == is_split
    assert [schedule.get_mpmd_idx(s) for s in range(len(plan.partition))] == [*plan.placement[0]]
    names = {"FWD": "F", "BWD": "BW", "BWD_I": "B", "BWD_W": "W"}
    for rank, program in enumerate(plan.schedule().programs):
        flat = [t for task in tasks[rank] for t in ([task] if hasattr(task, "kind") else task)]
        said = [f"{names[t.kind.name]}{t.stage_id}.{t.mubatch_idx}" for t in flat]
        kinds = {"BW": ["B", "W"]} if is_split else {}
        ops = [
            f"{kind}{op.stage}.{op.microbatch}"
            for op in program
            if op.kind != "STEP"
            for kind in kinds.get(op.kind, [op.kind])
        ]
        assert said == ops


@pytest.mark.usefixtures("jaxpp")
@pytest.mark.parametrize("family", ["zb-2p", "v-half", "v-min"])
def test_jaxpp_does_not_split_the_first_stages_backward(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(family)
    with pytest.raises(SynthError, match=r"W of stage 0 right after its B.*such as zb-h1"):
        to_jaxpp(plan, "1")
    monkeypatch.setattr("synth.interop.jaxpp._check_first_stage", lambda *_: None)
    with pytest.raises(NotImplementedError):  # what JaxPP would say
        tasks_of(plan)


def test_names_are_no_code_in_jaxpps_module() -> None:
    evil = '"""; import os; """ \\'
    plan = plan_of("1f1b").replace(name=evil, profile_name=evil)
    module = ast.parse(to_jaxpp(plan, "1"))
    imports = [one for one in module.body if isinstance(one, ast.Import | ast.ImportFrom)]
    assert [one.module for one in imports if isinstance(one, ast.ImportFrom)] == [
        "dataclasses",
        "jaxpp.schedules",
        "jaxpp.types",
    ]
    values = {
        one.targets[0].id: ast.literal_eval(one.value)
        for one in module.body
        if isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name)
    }
    assert values["SOURCE"] == (evil, evil, "1")
    kinds = ["Expr", *["ImportFrom"] * 3, *["Assign"] * 3, "ClassDef", "FunctionDef"]
    assert [type(one).__name__ for one in module.body] == kinds


EXPORTS: dict[str, Callable[[synth.Plan], str]] = {
    "torch": lambda plan: to_torch_csv(plan.schedule()),
    "torchtitan": lambda plan: to_torchtitan(plan, "plan.csv"),
    "megatron": to_megatron,
    "jaxpp": lambda plan: to_jaxpp(plan, "1"),
}


@pytest.mark.parametrize("to", EXPORTS)
@pytest.mark.parametrize(
    ("family", "message"),
    [
        ("2bw", "updates weights between its ops"),
        ("weipipe", "moves weights from rank to rank"),
        ("chimera", "holds 2 copies of each stage"),
        ("bpipe", "moves saved activations away"),
    ],
)
def test_no_export_drops_what_its_format_cannot_say(to: str, family: str, message: str) -> None:
    with pytest.raises(SynthError, match=message):
        EXPORTS[to](plan_of(family))


@pytest.mark.parametrize("to", ["torch", "jaxpp"])
def test_orders_of_ops_without_recomputation_refuse_it(to: str) -> None:
    with pytest.raises(SynthError, match=r"no op such as R.*--recompute none"):
        EXPORTS[to](plan_of("1f1b:recompute"))


@pytest.mark.usefixtures("jaxpp")
def test_jaxpp_refuses_other_numbers() -> None:
    plan = plan_of("1f1b")
    schedule, _ = tasks_of(plan)
    with pytest.raises(ValueError, match="for 8 micro-batches, not 9"):
        schedule.tasks(9)
