"""torchtitan's options of a plan, as the section `[parallelism]` of its TOML files.

torchtitan finds the rank of a stage by the name of a schedule, and the order of ops by the CSV
file. Its pages name the options: `pipeline_parallel_degree`, `pipeline_parallel_schedule`,
`pipeline_parallel_schedule_csv`, `module_fqns_per_model_part`. Releases from 0.3 on have no TOML
files; there they are fields of `ParallelismConfig`, with the same names.
"""

import json

from synth.errors import SynthError
from synth.interop.decoder import is_looped, is_v_shaped, stage_parts
from synth.interop.expressible import check_expressible
from synth.schedule.files.plan_file import Plan

# The modules of a torchtitan model after its decoder layers.
HEAD = ("norm", "output")


def to_torchtitan(plan: Plan, csv_path: str, head: tuple[str, ...] = HEAD) -> str:
    """Write the section of a plan.

    Args:
        plan: a plan for a model of an embedding, decoder layers and a head.
        csv_path: the path of the plan's schedule as `to_torch_csv` writes it, as torchtitan is to
            open it.
        head: names of the modules after the decoder layers.

    Raises:
        SynthError: the layers are others, torchtitan has no such placement, or `check_expressible`
            refuses the schedule.
    """
    check_expressible(plan.schedule(), "torchtitan")
    parts = [
        [
            *(["tok_embeddings"] if part.has_embedding else []),
            *(f"layers.{i}" for i in part.decoder_layers),
            *(head if part.has_head else ()),
        ]
        for part in stage_parts(plan)
    ]
    lines = [
        "[parallelism]",
        f"pipeline_parallel_degree = {plan.num_ranks}",
        f"pipeline_parallel_schedule = {json.dumps(schedule_name(plan))}",
        f"pipeline_parallel_schedule_csv = {json.dumps(csv_path)}",
        f"pipeline_parallel_microbatch_size = {plan.workload.micro_batch_size}",
        "module_fqns_per_model_part = [",
        *(f"    {json.dumps(modules)}," for modules in parts),
        "]",
        "",
        "[training]",
        f"local_batch_size = {plan.num_micro_batches * plan.workload.micro_batch_size}",
        f"seq_len = {plan.workload.sequence_length}",
    ]
    return "\n".join(lines) + "\n"


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
