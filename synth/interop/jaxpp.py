"""JaxPP's schedules: a class that returns the tasks of a plan (`jaxpp.schedules.BaseSchedule`).

JaxPP's tasks are FWD, BWD, and BWD_I and BWD_W where backwards are split (`is_partial_bwd`). A plan
with both kinds of backward has a fused task of BWD_I and BWD_W where it has BW.
"""

from synth.errors import SynthError
from synth.interop.decoder import check_one_copy
from synth.op_kinds import OpKind
from synth.schedule.files.plan_file import Plan
from synth.schedule.ops import Op

_SOURCE = '''"""Schedule {name} of {profile}, written by synth {version} for JaxPP."""

from dataclasses import dataclass

from jaxpp.schedules import BaseSchedule, FusedTask, Task
from jaxpp.types import MpmdIdx, TaskType

# The rank of each stage.
PLACEMENT = {placement}

# The ops of each rank in order: kind, stage, micro-batch.
PROGRAMS = {programs}


@dataclass(eq=True, frozen=True)
class SynthSchedule(BaseSchedule):
    """Use as `SynthSchedule(num_stages={num_stages})`."""

    def __post_init__(self):
        super().__post_init__()
        if self.num_stages != {num_stages}:
            raise ValueError(f"this schedule has {num_stages} stages, not {{self.num_stages}}")
        object.__setattr__(self, "is_partial_bwd", {is_split})

    def get_mpmd_idx(self, stage_id):
        return MpmdIdx(PLACEMENT[stage_id])

    def tasks(self, n_mubatches):
        if n_mubatches != {num_micro_batches}:
            raise ValueError(
                f"this schedule is for {num_micro_batches} micro-batches, not {{n_mubatches}}"
            )
        return [[_task(*op.split(".")) for op in program.split()] for program in PROGRAMS]


def _task(kind, stage, microbatch):
    kinds = {kinds}[kind]
    made = [Task.make(int(stage), int(microbatch), TaskType[name]) for name in kinds]
    return made[0] if len(made) == 1 else FusedTask(made)
'''


def to_jaxpp(plan: Plan, version: str) -> str:
    """Write the source of a module that defines `SynthSchedule`.

    Raises:
        SynthError: the plan holds copies of stages, or ops that JaxPP does not know.
    """
    check_one_copy(plan, "JaxPP")
    programs = plan.schedule().programs
    kinds = {op.kind for program in programs for op in program} - {OpKind.STEP}
    unknown = kinds - {OpKind.F, OpKind.B, OpKind.W, OpKind.BW}
    if unknown:
        raise SynthError(
            f"JaxPP has no op such as {min(unknown)}; solve with --recompute none for F, B, W and "
            f"BW alone"
        )
    is_split = OpKind.B in kinds
    names = {"F": ["FWD"], "B": ["BWD_I"], "W": ["BWD_W"]}
    names["BW"] = ["BWD_I", "BWD_W"] if is_split else ["BWD"]
    lines = [" ".join(map(_word, filter(_is_task, program))) for program in programs]
    listed = "".join(f"    {line!r},\n" for line in lines)
    return _SOURCE.format(
        name=plan.name,
        profile=plan.profile_name,
        version=version,
        placement=list(plan.placement[0]),
        programs=f"[\n{listed}]",
        num_stages=len(plan.partition),
        num_micro_batches=plan.num_micro_batches,
        is_split=is_split,
        kinds=names,
    )


def _is_task(op: Op) -> bool:
    return op.kind != OpKind.STEP


def _word(op: Op) -> str:
    return f"{op.kind}.{op.stage}.{op.microbatch}"
