"""torchtitan's options of a plan, as the section `[parallelism]` of its TOML files.

torchtitan finds the rank of a stage by the name of a schedule, and the order of ops by the CSV
file. Its pages name the options: `pipeline_parallel_degree`, `pipeline_parallel_schedule`,
`pipeline_parallel_schedule_csv`, `module_fqns_per_model_part`. Releases from 0.3 on have no TOML
files; there they are fields of `ParallelismConfig`, with the same names, and the comments at the
beginning say what is called otherwise.
"""

import json
from collections.abc import Mapping

from synth.errors import SynthError
from synth.interop.expressible import check_expressible
from synth.interop.group_options import torchtitan_group
from synth.interop.model_parts import is_looped, is_v_shaped, targets
from synth.interop.recomputation import torchtitan_checkpointing
from synth.profile.model_parts import ModelPart
from synth.schedule.files.plan_file import Plan

HEADER = (
    "# for torchtitan 0.3.0, whose config has classes with these fields",
    "# [activation_checkpoint] is of 0.2; 0.3: None, FullAC, or SelectiveAC of ops",
)

# A stage keeps the modules whose names it has, and no others: the head is `output` up to torchtitan
# 0.2 and `lm_head` from 0.3 on, so both names are right for both. Its models have no layers of
# multi-token prediction under pipeline parallelism.
_MODULES = {
    ModelPart.EMBEDDING: "tok_embeddings",
    ModelPart.DECODER: "layers.{}",
    ModelPart.HEAD: "norm,output,lm_head",
}


def to_torchtitan(plan: Plan, csv_path: str, layers: Mapping[str, str] | None = None) -> str:
    """Write the sections of a plan, with its recomputed layers if torchtitan has a rule for them.

    The sizes of groups are those of the plan's ranks; data-parallel degrees are left to torchtitan.

    Args:
        plan: a plan for a model of an embedding, decoder layers and a head.
        csv_path: the path of the plan's schedule as `to_torch_csv` writes it, as torchtitan is to
            open it.
        layers: torchtitan's modules of layers that are not known by their names, or are called
            otherwise, as in `targets`: several are separated by commas, and `{}` is the number of
            the layer among those of the same modules.

    Raises:
        SynthError: the layers are others, torchtitan has no such placement, or `check_expressible`
            refuses the schedule.
    """
    check_expressible(plan.schedule(), "torchtitan")
    lines = [
        *HEADER,
        "[parallelism]",
        *(() if plan.workload.group is None else torchtitan_group(plan.workload.group)),
        f"pipeline_parallel_degree = {plan.num_ranks}",
        f"pipeline_parallel_schedule = {json.dumps(schedule_name(plan))}",
        f"pipeline_parallel_schedule_csv = {json.dumps(csv_path)}",
        f"pipeline_parallel_microbatch_size = {plan.workload.micro_batch_size}",
        "module_fqns_per_model_part = [",
        *(f"    {json.dumps(modules)}," for modules in _modules(plan, layers or {})),
        "]",
        "",
        "[training]",
        f"local_batch_size = {plan.num_micro_batches * plan.workload.micro_batch_size}",
        f"seq_len = {plan.workload.sequence_length}",
    ]
    if checkpointing := torchtitan_checkpointing(plan, torchtitan_parts(plan, layers or {})):
        lines += ["", *checkpointing]
    return "\n".join(lines) + "\n"


def torchtitan_parts(plan: Plan, given: Mapping[str, str]) -> list[ModelPart]:
    """Return what torchtitan takes the layers of a plan for: those in `layers` are decoder layers.

    The arguments and errors are those of `targets`.
    """
    found = targets(plan, _MODULES, given, "torchtitan")
    return [
        ModelPart.DECODER if target.name.startswith("layers.") else ModelPart.EMBEDDING
        for target in found
    ]


def _modules(plan: Plan, given: Mapping[str, str]) -> list[list[str]]:
    """Return the names of the modules of each stage."""
    found = targets(plan, _MODULES, given, "torchtitan")
    numbered: dict[str, int] = {}
    named = []
    for target, _ in found:
        number = numbered[target] = numbered.get(target, -1) + 1
        named.append(_names(target, number))
    stages = [
        [name for layer in plan.layers_of(stage) for name in named[layer]]
        for stage in range(len(plan.partition))
    ]
    # A model without a layer for its embedding or its head has it on its first or last stage.
    parts = {target.part for target in found}
    if ModelPart.EMBEDDING not in parts:
        stages[0] = _names(_MODULES[ModelPart.EMBEDDING]) + stages[0]
    if ModelPart.HEAD not in parts:
        stages[-1] += _names(_MODULES[ModelPart.HEAD])
    return [list(dict.fromkeys(names)) for names in stages]


def _names(target: str, number: int = 0) -> list[str]:
    """Return the modules of a layer; none where its target is empty."""
    names = (name.strip() for name in target.split(","))
    return [name.replace("{}", str(number)) for name in names if name]


def schedule_name(plan: Plan) -> str:
    """Return the schedule of PyTorch with the plan's placement.

    Raises:
        SynthError: there is none.
    """
    if is_looped(plan):
        return "1F1B" if len(plan.partition) == plan.num_ranks else "Interleaved1F1B"
    if is_v_shaped(plan):
        return "ZBVZeroBubble"
    raise SynthError(
        f"torchtitan has no placement as that of {plan.name!r}; solve for --placement linear, "
        f"looped:N or v"
    )
