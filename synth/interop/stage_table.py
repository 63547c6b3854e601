"""The file beside an exported schedule: which layers each stage has, and which rank holds it."""

import json
from pathlib import Path

from synth.schedule.files.plan_file import Plan


def stage_table(plan: Plan) -> str:
    """Write placement, partition and micro-batches of a plan, or of its first pipeline, as JSON."""
    placement = plan.placement[0]
    stages = [
        {
            "rank": placement[stage],
            "first_layer": plan.layers_of(stage).start,
            "end_layer": plan.layers_of(stage).stop,
            "layers": [plan.layers[i] for i in plan.layers_of(stage)],
        }
        for stage in range(len(plan.partition))
    ]
    table = {
        "schedule": plan.name,
        "num_ranks": max(placement) + 1,
        "num_micro_batches": plan.num_micro_batches // len(plan.placement),
        "recomputed_layers": list(plan.recomputed_layers or ()),
        **({"recompute_policies": of_policies} if (of_policies := plan.recompute_policies) else {}),
        "stages": stages,
    }
    return json.dumps(table, indent=1) + "\n"


def beside(schedule_path: Path) -> Path:
    """Return the path of the table: `plan.stages.json` beside `plan.csv`.

    Beside `plan.v1` it is `plan.v1.stages.json`, so that `plan.v2` has a table of its own.
    """
    is_csv = schedule_path.suffix.lower() == ".csv"
    return schedule_path.with_name(
        f"{schedule_path.stem if is_csv else schedule_path.name}.stages.json"
    )
