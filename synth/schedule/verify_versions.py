"""The verifier's part for weights with versions: STEPs, batches of gradients, versions read."""

from synth.costs.costs import Costs
from synth.op_kinds import OpKind
from synth.schedule.arrays import OpArrays
from synth.schedule.error import ScheduleError
from synth.schedule.lowering.version_accesses import VersionAccesses
from synth.schedule.model import Schedule
from synth.schedule.ops import Op
from synth.schedule.verify_weights import check_parameters_known
from synth.schedule.weight_versions import ForwardReads, WeightVersions


def check_version_rule(schedule: Schedule, costs: Costs) -> None:
    """Check that the plan's rule fits the plan."""
    rule, m = schedule.versions, schedule.num_micro_batches
    if rule is None:
        return
    for size in dict.fromkeys(schedule.update_sizes):
        if rule.every < 1 or m % size:
            raise ScheduleError(
                f"an update after every {size} micro-batches does not divide {m} of them; give a "
                f"divisor"
            )
    if schedule.weights is not None:
        raise ScheduleError("this schedule has weight passing; then weights have one version")
    _check_holders(schedule, rule)
    check_parameters_known(costs)


def _check_holders(schedule: Schedule, rule: WeightVersions) -> None:
    """Ranks that hold a stage together hold no other, and versions of all stages mean the same."""
    holders = schedule.placement.holders
    for stage, ranks in enumerate(holders):
        others = {other for rank in ranks for other, _ in schedule.placement.held[rank]} - {stage}
        if len(ranks) > 1 and others:
            raise ScheduleError(
                f"stage {stage} has copies on ranks {', '.join(map(str, ranks))}, which also hold "
                f"stage {min(others)}; with updates between ops the ranks of a stage on several "
                f"ranks hold that stage only"
            )
    is_numbered_alike = len({len(ranks) for ranks in holders}) == 1
    if rule.forward != ForwardReads.NEWEST and not is_numbered_alike:
        raise ScheduleError(
            f"forwards read {rule.forward}, a version that all stages have, and stages are on "
            f"{', '.join(str(len(ranks)) for ranks in holders)} ranks, so that they are updated "
            f"after different numbers of micro-batches; give each stage as many ranks"
        )


def check_versions(arrays: OpArrays, accesses: VersionAccesses) -> None:
    """Check that updates are complete and in order, and that every version is there to be read."""
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
    """Every rank of a stage has all its updates, in ascending order, named by its first copy."""
    schedule = arrays.schedule
    for stage, ranks in enumerate(schedule.placement.holders):
        count = schedule.num_micro_batches // schedule.update_sizes[stage]
        firsts = sorted({copies[stage] for copies in schedule.placement.first_copies})
        for rank, first in zip(ranks, firsts, strict=True):
            node = (arrays.of_step & (arrays.stage == stage) & (arrays.rank == rank)).nonzero()[0]
            numbers, replicas = arrays.microbatch[node].tolist(), arrays.replica[node].tolist()
            found = [Op(OpKind.STEP, stage, *pair) for pair in zip(numbers, replicas, strict=True)]
            needed = [Op(OpKind.STEP, stage, number, first) for number in range(count)]
            if found != needed:
                pairs = zip(found, needed, strict=False)
                wrong = next(
                    (i for i, (a, b) in enumerate(pairs) if a != b), min(len(found), count)
                )
                given = f"{found[wrong]} stands there" if len(found) > wrong else "the program ends"
                raise ScheduleError(
                    f"rank {rank}: of stage {stage} there must be {count} updates, {needed[0]} to "
                    f"{needed[-1]}, in this order; after {wrong} of them {given}"
                )


def _check_batches_apart(arrays: OpArrays, accesses: VersionAccesses) -> None:
    """A gradient is added after the update of the batch before: there is one accumulator."""
    adds = arrays.of_kinds(OpKind.W, OpKind.BW)
    early = (adds & (arrays.microbatch // arrays.update_size > accesses.newest)).nonzero()[0]
    if len(early):
        node = int(early[0])
        stage, newest = int(arrays.stage[node]), int(accesses.newest[node])
        raise ScheduleError(
            f"{arrays.name(node)} adds to the gradient before {Op(OpKind.STEP, stage, newest)} "
            f"has taken that of the batch before"
        )
