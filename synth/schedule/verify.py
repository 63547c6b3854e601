"""The verifier: completeness, order, freedom from deadlock, memory limits.

A deadlock is a cycle of waits between ops and transfers. The simulation finds it (`simulate`),
because it runs every op whose inputs are there until none is left.
"""

from collections.abc import Sequence
from itertools import product

import numpy as np

from synth.costs.costs import Costs
from synth.op_kinds import BACKWARD, MOVES, VISITS, OpKind
from synth.schedule.arrays import KIND_CODES, Flags, OpArrays
from synth.schedule.error import ScheduleError
from synth.schedule.lowering.effects import Effects
from synth.schedule.lowering.lower import Action, Lowered, lower_arrays
from synth.schedule.model import Placement, Schedule
from synth.schedule.ops import Op, Value
from synth.schedule.rank_memory import memory_usage, peak_bytes
from synth.schedule.simulate import DeadlockError, Timeline, simulate
from synth.schedule.verify_versions import check_version_rule, check_versions
from synth.schedule.verify_vocabulary import check_vocabulary
from synth.schedule.verify_weights import check_visits, check_weight_flow
from synth.schedule.weight_flow import Route
from synth.units import format_bytes_both

__all__ = ["ScheduleError", "check_caps", "check_deadlock", "lower_checked", "verify"]

# A micro-batch passes a stage by F and one set of each of these three rows.
_BACKWARDS = ({OpKind.B, OpKind.W}, {OpKind.BW})
_REBUILDS: tuple[set[OpKind], ...] = (set(), {OpKind.R})
_MOVES: tuple[set[OpKind], ...] = (set(), {OpKind.OFFLOAD, OpKind.RELOAD}, set(MOVES))

# The moves that stand on another rank than their stage.
_GUESTS = (OpKind.HOST_FOR, OpKind.RETURN)

# The complete combinations as bit masks, with one bit for each kind of op that belongs to a
# micro-batch.
_OF_NONE = (OpKind.STEP, *VISITS)
_BITS = np.array([0 if kind in _OF_NONE else 1 << code for code, kind in enumerate(OpKind)])
_WHOLE = [
    sum(1 << KIND_CODES[kind] for kind in {OpKind.F}.union(*kinds))
    for kinds in product(_BACKWARDS, _REBUILDS, _MOVES)
]
_IS_WHOLE = np.isin(np.arange(1 << len(OpKind)), _WHOLE)


def verify(
    schedule: Schedule, costs: Costs, caps_bytes: Sequence[int] | None = None
) -> tuple[Lowered, Timeline]:
    """Check that a schedule can run, and return its lowered form and simulation.

    Args:
        schedule: a schedule of any origin.
        caps_bytes: the memory limit of each rank; None: not checked.

    Raises:
        ScheduleError: an op is missing, repeated, misplaced or out of order; the programs
            deadlock; a memory limit is exceeded. The message names the first rank and op.
    """
    lowered = lower_checked(schedule, costs)
    timeline = check_deadlock(lowered)
    if caps_bytes is not None:
        check_caps(lowered, caps_bytes)
    return lowered, timeline


def lower_checked(schedule: Schedule, costs: Costs) -> Lowered:
    """Lower a schedule, and check all that does not depend on when its ops run.

    Raises:
        ScheduleError: an op is missing, repeated, misplaced or out of order.
    """
    _check_shape(schedule, costs)
    check_weight_flow(schedule, costs)
    check_version_rule(schedule, costs)
    arrays = OpArrays.of(schedule)
    _check_ops_exist(arrays)
    _check_complete(arrays)
    _check_overlapped(schedule)
    check_vocabulary(schedule)
    lowered = lower_arrays(arrays, costs)
    if lowered.visits is not None:
        check_visits(arrays, lowered.visits)
    if lowered.versions is not None:
        check_versions(arrays, lowered.versions)
    _check_local_order(lowered)
    return lowered


def _check_shape(schedule: Schedule, costs: Costs) -> None:
    placement = schedule.placement
    if placement.num_stages != costs.num_stages:
        raise ScheduleError(
            f"the placement has {placement.num_stages} stages, the costs {costs.num_stages}"
        )
    if [*map(len, placement.of_backwards)] != [*map(len, placement.ranks)]:
        raise ScheduleError(
            "the placement of backwards has other copies or stages than that of forwards; give a "
            "rank for the backwards of each stage copy"
        )
    is_from_host = schedule.weights is not None and schedule.weights.weights == Route.HOST
    if placement.backward_ranks is not None and not is_from_host:
        raise ScheduleError(
            "backwards run on other ranks than forwards, which both need the stage's weights; give "
            "homes, and the host as the route of weights and gradients"
        )
    if placement.num_ranks != schedule.num_ranks:
        raise ScheduleError(
            f"the placement names {placement.num_ranks} ranks, "
            f"there are programs for {schedule.num_ranks}"
        )
    buffering = schedule.buffering
    if schedule.num_micro_batches < 1 or min(buffering.receive_ahead, buffering.send_behind) < 0:
        raise ScheduleError("a schedule needs at least one micro-batch and buffering ≥ 0")


def _check_ops_exist(arrays: OpArrays) -> None:
    """Every op occurs once and names an existing micro-batch and a stage that its rank holds.

    HOST_FOR and RETURN name a stage of another rank, and stand on one rank only.
    """
    if not _all_exist(arrays):
        for rank, program in enumerate(arrays.schedule.programs):
            _find_bad_op(arrays.schedule, rank, program)
        _find_doubled_guest(arrays.schedule)


def _all_exist(arrays: OpArrays) -> bool:
    schedule = arrays.schedule
    num_replicas = len(schedule.placement.ranks)
    ends = (len(OpKind), arrays.num_stages, schedule.num_micro_batches, num_replicas)
    is_one_update = schedule.versions is None
    return bool(
        _may_be_complete(arrays)
        and not (is_one_update and arrays.microbatch[arrays.of_step].any())
        and ((arrays.fields >= 0) & (arrays.fields < np.array(ends)[:, None])).all()
        and (_on_rank_of_stage(arrays) != arrays.of_kinds(*_GUESTS)).all()
        and arrays.counts.max() < 2
    )


def _on_rank_of_stage(arrays: OpArrays) -> Flags:
    """A mask of the ops on the rank of their stage; F and backwards may have one each."""
    placement = arrays.schedule.placement
    here: Flags = np.array(placement.ranks)[arrays.replica, arrays.stage] == arrays.rank
    if placement.backward_ranks is None:
        return here
    of_backward = np.array(placement.backward_ranks)[arrays.replica, arrays.stage] == arrays.rank
    on_either = np.where(arrays.of_kinds(*BACKWARD), of_backward, here | of_backward)
    return np.where(arrays.kind == KIND_CODES[OpKind.F], here, on_either)


def _may_be_complete(arrays: OpArrays) -> bool:
    """True if there are enough ops, so that a table of all micro-batches is not much larger."""
    return arrays.num_nodes >= arrays.num_stages * arrays.schedule.num_micro_batches


def _find_bad_op(schedule: Schedule, rank: int, program: Sequence[Op]) -> None:
    held = set(schedule.placement.held[rank])
    seen: set[Op] = set()
    for place, op in enumerate(program):
        where = f"rank {rank}, op {place} ({op})"
        if op.kind in _GUESTS:
            _check_guest(where, schedule.placement, rank, op)
        elif (op.stage, op.replica) not in held:
            stages = ", ".join(str(stage) for stage, _ in sorted(held))
            raise ScheduleError(f"{where}: this rank holds stage {stages}, not {op.stage}")
        else:
            _check_half(where, schedule.placement, rank, op)
        most = schedule.num_micro_batches - 1
        if op.kind == OpKind.STEP and schedule.versions is None:
            most = 0
        if not 0 <= op.microbatch <= most:
            numbers = "visits" if op.kind in VISITS else "micro-batches"
            numbers = "updates" if op.kind == OpKind.STEP else numbers
            raise ScheduleError(f"{where}: {numbers} run from 0 to {most}")
        if op in seen:
            raise ScheduleError(f"{where}: {op} stands here for the second time")
        seen.add(op)


def _check_half(where: str, placement: Placement, rank: int, op: Op) -> None:
    """F stands where the forwards of its stage run, R, B, BW, W, O and L where its backwards do."""
    forward, backward = (
        rows[op.replica][op.stage] for rows in (placement.ranks, placement.of_backwards)
    )
    expected = {forward: op.kind not in BACKWARD, backward: op.kind != OpKind.F}
    if forward != backward and not expected[rank]:
        raise ScheduleError(
            f"{where}: forwards of stage {op.stage} run on rank {forward}, its backwards on rank "
            f"{backward}"
        )


def _check_guest(where: str, placement: Placement, rank: int, op: Op) -> None:
    """HOST_FOR and RETURN serve an existing stage, on a rank that does not hold it."""
    if not (0 <= op.stage < placement.num_stages and 0 <= op.replica < len(placement.ranks)):
        raise ScheduleError(f"{where}: there is no such stage")
    if rank in (rows[op.replica][op.stage] for rows in (placement.ranks, placement.of_backwards)):
        raise ScheduleError(
            f"{where}: this rank holds stage {op.stage} itself; K and G stand on another rank"
        )


def _find_doubled_guest(schedule: Schedule) -> None:
    keepers: dict[Op, int] = {}
    for rank, program in enumerate(schedule.programs):
        for place, op in enumerate(program):
            if op.kind in _GUESTS and keepers.setdefault(op, rank) != rank:
                raise ScheduleError(
                    f"rank {rank}, op {place} ({op}): {op} stands on rank {keepers[op]} already"
                )


def _check_complete(arrays: OpArrays) -> None:
    """Each micro-batch passes each stage once: F, and B with W, or BW, of one replica.

    Optional are R, and OFFLOAD with RELOAD, to which HOST_FOR and RETURN of one other rank may
    belong.
    """
    if not _all_complete(arrays):
        _find_bad_micro_batch(arrays.schedule)


def _all_complete(arrays: OpArrays) -> bool:
    if not _may_be_complete(arrays):
        return False
    # One bit per kind, by replica and (stage, micro-batch).
    done = _BITS[: arrays.num_kinds] @ arrays.counts
    by_copy = done.reshape(len(arrays.schedule.placement.ranks), -1)
    one_copy = (by_copy > 0).sum(axis=0) == 1
    return bool((_IS_WHOLE[by_copy].sum(axis=0) == 1)[one_copy].all() and one_copy.all()) and (
        arrays.is_plain or _hosts_match(arrays)
    )


def _hosts_match(arrays: OpArrays) -> bool:
    """True if HOST_FOR and RETURN of each micro-batch stand on the same rank."""
    ranks = np.full((2, arrays.num_cells), -1)
    for row, kind in enumerate(_GUESTS):
        nodes = arrays.kind == KIND_CODES[kind]
        ranks[row, arrays.cells[nodes]] = arrays.rank[nodes]
    return bool((ranks[0] == ranks[1]).all())


def _find_bad_micro_batch(schedule: Schedule) -> None:
    present = {op: rank for rank, program in enumerate(schedule.programs) for op in program}
    placement = schedule.placement
    for stage in range(placement.num_stages):
        for microbatch in range(schedule.num_micro_batches):
            found = [
                op
                for replica in range(len(placement.ranks))
                for kind in OpKind
                if kind not in _OF_NONE and (op := Op(kind, stage, microbatch, replica)) in present
            ]
            _check_micro_batch(schedule, Op(OpKind.F, stage, microbatch), found)
            _check_moves({op.kind: (present[op], op) for op in found if op.kind in MOVES})


def _check_micro_batch(schedule: Schedule, forward: Op, found: list[Op]) -> None:
    replicas = {op.replica for op in found}
    kinds = {op.kind for op in found}
    placement, replica = schedule.placement, min(replicas, default=0)
    rank = placement.rank_of(forward.stage, replica)
    if len(replicas) > 1:
        listed = ", ".join(str(op) for op in found)
        raise ScheduleError(f"rank {rank}: one micro-batch is split over replicas: {listed}")
    for kind in (OpKind.F, OpKind.B, OpKind.W):
        missing = kind not in kinds and (kind == OpKind.F or OpKind.BW not in kinds)
        if missing:
            of_kind = placement.ranks if kind == OpKind.F else placement.of_backwards
            where = of_kind[replica][forward.stage]
            raise ScheduleError(f"rank {where}: {forward._replace(kind=kind)} is missing")
    if OpKind.BW in kinds and kinds & {OpKind.B, OpKind.W}:
        extra = next(op for op in found if op.kind in (OpKind.B, OpKind.W))
        raise ScheduleError(
            f"rank {rank}: {extra} does again what {forward._replace(kind=OpKind.BW)} does"
        )


def _check_moves(found: dict[OpKind, tuple[int, Op]]) -> None:
    """An OFFLOAD has its RELOAD, and a HOST_FOR its RETURN on the same rank."""
    if not found:
        return
    rank, op = next(iter(found.values()))
    needed = MOVES if any(kind in found for kind in _GUESTS) else (OpKind.OFFLOAD, OpKind.RELOAD)
    for kind in needed:
        if kind not in found:
            raise ScheduleError(
                f"rank {rank}: {op} needs {op._replace(kind=kind)}, which is missing"
            )
    if OpKind.HOST_FOR in found and found[OpKind.HOST_FOR][0] != found[OpKind.RETURN][0]:
        (keeper, kept), (giver, given) = (found[kind] for kind in _GUESTS)
        raise ScheduleError(f"rank {giver}: {given} stands here, {kept} on rank {keeper}")


def _check_overlapped(schedule: Schedule) -> None:
    """Check that pairs are F and the BW behind it, of two micro-batches, on weights that stay."""
    if not schedule.overlapped:
        return
    if schedule.weights is not None or schedule.versions is not None:
        raise ScheduleError(
            "F and BW run at once, and weights are passed or have versions; one of both is possible"
        )
    left = set(schedule.overlapped)
    for rank, program in enumerate(schedule.programs):
        for place, op in enumerate(program):
            if op not in schedule.overlapped:
                continue
            left.remove(op)
            after = program[place + 1] if place + 1 < len(program) else None
            is_pair = op.kind == OpKind.F and after is not None and after.kind == OpKind.BW
            if after is None or not is_pair or after.microbatch == op.microbatch:
                raise ScheduleError(
                    f"rank {rank}, op {place} ({op}): it is to run at once with "
                    f"{after or 'nothing behind it'}; only an F and the BW of another micro-batch "
                    f"behind it can"
                )
    if left:
        raise ScheduleError(f"{min(left)} is to run at once with another op, and no rank has it")


def _check_local_order(lowered: Lowered) -> None:
    """An op reads values of its own rank only after they were made; STEPs come last."""
    arrays = lowered.arrays
    of_step = arrays.of_step
    follows_step = of_step[:-1] & ~of_step[1:] & (arrays.rank[:-1] == arrays.rank[1:])
    is_one_update = lowered.versions is None
    if (is_one_update and follows_step.any()) or len(lowered.def_use.late_reader):
        for rank, program in enumerate(lowered.ops):
            if is_one_update:
                _find_op_behind_step(rank, program)
            _find_bad_order(lowered.effects, rank, program)


def _find_op_behind_step(rank: int, program: Sequence[Op]) -> None:
    first_step = next((i for i, op in enumerate(program) if op.kind == OpKind.STEP), len(program))
    for place in range(first_step, len(program)):
        if program[place].kind != OpKind.STEP:
            raise ScheduleError(
                f"rank {rank}, op {place} ({program[place]}): stands behind "
                f"{program[first_step]}; STEP waits for all ranks, so it comes last"
            )


def _find_bad_order(effects: Effects, rank: int, program: Sequence[Op]) -> None:
    places = {value: i for i, op in enumerate(program) for value in effects.makes(op)}
    for place, op in enumerate(program):
        late: list[Value] = [v for v in effects.reads(op) if places.get(v, -1) >= place]
        if late:
            maker = program[places[late[0]]]
            raise ScheduleError(f"rank {rank}, op {place} ({op}): runs before {maker}")


def check_deadlock(lowered: Lowered) -> Timeline:
    """Simulate a lowered schedule.

    Raises:
        ScheduleError: ranks wait for each other.
    """
    try:
        return simulate(lowered)
    except DeadlockError as error:
        names = " ← ".join(lowered.node_name(node) for node in error.nodes[:8])
        more = " ← …" if len(error.nodes) > 8 else ""
        raise ScheduleError(
            f"deadlock: {names}{more} ← {lowered.node_name(error.nodes[0])} (each waits for the "
            f"next)"
        ) from None


def check_caps(lowered: Lowered, caps_bytes: Sequence[int]) -> None:
    """Check the memory limit of each rank.

    Raises:
        ScheduleError: one is exceeded; names the rank and the first op at which it is.
    """
    if len(caps_bytes) != lowered.num_ranks:
        raise ScheduleError(f"{len(caps_bytes)} memory limits for {lowered.num_ranks} ranks")
    for rank, (peak, cap) in enumerate(zip(peak_bytes(lowered), caps_bytes, strict=True)):
        if peak > cap:
            curve = memory_usage(lowered, rank)
            first = next(i for i, level in enumerate(curve.highest) if level > cap)
            ops = [i.op for i in lowered.programs[rank][first:] if i.action == Action.COMPUTE]
            at = f"at {ops[0]}" if ops else "at its end"
            raise ScheduleError(
                f"rank {rank} {at}: {format_bytes_both(curve.highest[first])} in use, "
                f"memory limit {format_bytes_both(cap)} (its peak is {format_bytes_both(peak)})"
            )
