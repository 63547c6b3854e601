"""The verifier's part for weights with versions: STEPs, batches of gradients, versions read."""

from synth.costs import Costs
from synth.op_kinds import OpKind
from synth.schedule.arrays import OpArrays
from synth.schedule.error import ScheduleError
from synth.schedule.lowering.version_accesses import VersionAccesses
from synth.schedule.model import Schedule
from synth.schedule.ops import Op
from synth.schedule.verify_weights import check_parameters_known


def check_version_rule(schedule: Schedule, costs: Costs) -> None:
    """Check that the plan's rule fits the plan.

    Raises:
        ScheduleError: it does not.
    """
    rule, m = schedule.versions, schedule.num_micro_batches
    if rule is None:
        return
    if rule.every < 1 or m % rule.every:
        raise ScheduleError(
            f"an update after every {rule.every} micro-batches does not divide {m} of them; give "
            f"a divisor"
        )
    if schedule.weights is not None:
        raise ScheduleError("weights travel in this schedule; then they have one version")
    if len(schedule.placement.ranks) > 1:
        raise ScheduleError(
            f"stages have {len(schedule.placement.ranks)} copies; with an update every "
            f"{rule.every} micro-batches each stage has one"
        )
    check_parameters_known(costs)


def check_versions(arrays: OpArrays, accesses: VersionAccesses) -> None:
    """Check that updates are complete and in order, and that every version is there to be read.

    Raises:
        ScheduleError: names the first op that is wrong.
    """
    _check_steps(arrays, accesses)
    _check_batches_apart(arrays, accesses)
    late = (accesses.version > accesses.newest).nonzero()[0]
    if len(late):
        node = int(late[0])
        stage, version = int(arrays.stage[node]), int(accesses.version[node])
        raise ScheduleError(
            f"{arrays.name(node)} reads version {version} of stage {stage}, which "
            f"{Op(OpKind.STEP, stage, version - 1)} makes behind it; the newest one there is "
            f"{int(accesses.newest[node])}. Update less often, or keep fewer micro-batches in "
            f"flight"
        )


def _check_steps(arrays: OpArrays, accesses: VersionAccesses) -> None:
    """Every stage has all its updates, in ascending order."""
    count = arrays.schedule.num_micro_batches // accesses.rule.every
    for stage in range(arrays.num_stages):
        found = arrays.microbatch[arrays.of_step & (arrays.stage == stage)].tolist()
        if found != list(range(count)):
            wrong = next((i for i, u in enumerate(found[:count]) if u != i), len(found))
            rank = arrays.schedule.placement.rank_of(stage)
            if len(found) > wrong:
                given = f"{Op(OpKind.STEP, stage, found[wrong])} stands there"
            else:
                given = "the program ends"
            raise ScheduleError(
                f"rank {rank}: of stage {stage} there must be {count} updates, "
                f"{Op(OpKind.STEP, stage, 0)} to {Op(OpKind.STEP, stage, count - 1)}, in this "
                f"order; after {wrong} of them {given}"
            )


def _check_batches_apart(arrays: OpArrays, accesses: VersionAccesses) -> None:
    """A gradient is added after the update of the batch before: there is one accumulator."""
    adds = arrays.of_kinds(OpKind.W, OpKind.BW)
    early = (adds & (arrays.microbatch // accesses.rule.every > accesses.newest)).nonzero()[0]
    if len(early):
        node = int(early[0])
        stage, newest = int(arrays.stage[node]), int(accesses.newest[node])
        raise ScheduleError(
            f"{arrays.name(node)} adds to the gradient before {Op(OpKind.STEP, stage, newest)} "
            f"has taken that of the batch before"
        )
