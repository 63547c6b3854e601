"""JaxPP's schedules: a class that returns the tasks of a plan (`jaxpp.schedules.BaseSchedule`).

JaxPP's tasks are FWD, BWD, and BWD_I and BWD_W where backwards are split (`is_partial_bwd`). A plan
with both kinds of backward has a fused task of BWD_I and BWD_W where it has BW.
"""

from collections.abc import Sequence
from itertools import pairwise

from synth.errors import SynthError
from synth.interop.expressible import check_expressible
from synth.op_kinds import OpKind
from synth.schedule.files.plan_file import Plan
from synth.schedule.ops import Op

_SOURCE = '''"""Schedule for JaxPP, written by synth."""

from dataclasses import dataclass

from jaxpp.schedules import BaseSchedule, FusedTask, Task
from jaxpp.types import MpmdIdx, TaskType

# The names of the schedule and its profile, and the version of synth.
SOURCE = {source!r}

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
        SynthError: the plan has ops that JaxPP does not know, `check_expressible` refuses its
            schedule, or the first stage's B and W are apart.
    """
    schedule = plan.schedule()
    check_expressible(schedule, "JaxPP")
    programs = [[op for op in program if op.kind != OpKind.STEP] for program in schedule.programs]
    kinds = {op.kind for program in programs for op in program}
    unknown = kinds - {OpKind.F, OpKind.B, OpKind.W, OpKind.BW}
    if unknown:
        raise SynthError(
            f"JaxPP has no op such as {min(unknown)}; solve with --recompute none for F, B, W and "
            f"BW alone"
        )
    _check_first_stage(plan.name, programs)
    is_split = OpKind.B in kinds
    names = {"F": ["FWD"], "B": ["BWD_I"], "W": ["BWD_W"]}
    names["BW"] = ["BWD_I", "BWD_W"] if is_split else ["BWD"]
    lines = [
        " ".join(f"{op.kind}.{op.stage}.{op.microbatch}" for op in program) for program in programs
    ]
    listed = "".join(f"    {line!r},\n" for line in lines)
    return _SOURCE.format(
        source=(plan.name, plan.profile_name, version),
        placement=list(plan.placement[0]),
        programs=f"[\n{listed}]",
        num_stages=len(plan.partition),
        num_micro_batches=plan.num_micro_batches,
        is_split=is_split,
        kinds=names,
    )


def _check_first_stage(name: str, programs: Sequence[Sequence[Op]]) -> None:
    """Check JaxPP's rule of the first stage, whose backward it does not split.

    The first stage has no gradient of an input, so `check_and_strip_adjecent_bwd_a_bwd_w` fuses its
    BWD_I with the BWD_W that it needs after it.

    Raises:
        SynthError: another op stands between a B and its W.
    """
    for rank, program in enumerate(programs):
        for op, behind in pairwise(program):
            if op.kind == OpKind.B and op.stage == 0 and behind != op._replace(kind=OpKind.W):
                raise SynthError(
                    f"JaxPP runs W of stage 0 right after its B, and rank {rank} of {name!r} runs "
                    f"{op} and then {behind}; export a schedule that does not part them, such as "
                    f"zb-h1 or 1f1b"
                )
