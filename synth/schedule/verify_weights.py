"""The verifier's part for weight passing: homes, visits, gradients, order of collectives."""

from collections.abc import Sequence

from synth.costs.costs import Costs
from synth.op_kinds import VISITS, OpKind
from synth.schedule.arrays import OpArrays
from synth.schedule.error import ScheduleError
from synth.schedule.lowering.visit_collectives import disordered
from synth.schedule.lowering.visit_transfers import sources_of_visits
from synth.schedule.lowering.weight_tree import rank_above
from synth.schedule.lowering.weight_visits import WeightVisits
from synth.schedule.model import Schedule
from synth.schedule.weight_flow import Route, Sharded, WeightFlow


def check_weight_flow(schedule: Schedule, costs: Costs) -> None:
    """Check that homes and routes belong together, and that visits are listed only with homes."""
    flow = schedule.weights
    if flow is None:
        for rank, program in enumerate(schedule.programs):
            for place, op in enumerate(program):
                if op.kind in VISITS:
                    raise ScheduleError(
                        f"rank {rank}, op {place} ({op}): weights stay with their stages in this "
                        f"schedule; visits need homes and a route of weights"
                    )
        return
    num_stages = schedule.placement.num_stages
    if len(flow.homes) != num_stages:
        raise ScheduleError(f"there are homes of {len(flow.homes)} stages, needed {num_stages}")
    for stage, homes in enumerate(flow.homes):
        _check_homes(schedule, flow, stage, homes)
    check_parameters_known(costs)


def check_parameters_known(costs: Costs) -> None:
    """Check that the costs give a stage's parameters apart from its other static bytes."""
    for stage, known in enumerate(costs.stages):
        if known.static_bytes and not known.parameter_bytes:
            raise ScheduleError(
                f"the costs of stage {stage} do not say how many of its {known.static_bytes} "
                f"static bytes are parameters; profile again"
            )
        if known.static_bytes < known.parameter_bytes + known.gradient_bytes:
            raise ScheduleError(
                f"the costs of stage {stage} have {known.static_bytes} static bytes, fewer than "
                f"its {known.parameter_bytes} of parameters and {known.gradient_bytes} of "
                f"gradients, which are part of them"
            )


def _check_homes(schedule: Schedule, flow: WeightFlow, stage: int, homes: tuple[int, ...]) -> None:
    holders = sorted({ranks[stage] for ranks in schedule.placement.of_backwards})
    where = f"stage {stage} has its home on {_ranks(homes)}"
    if not homes or list(homes) != sorted(set(homes)) or not set(homes) <= set(holders):
        raise ScheduleError(
            f"{where}; a home is a rank that holds a copy of the stage, here {_ranks(holders)}, "
            f"each once and in ascending order"
        )
    is_collective = Route.GATHER in (flow.weights, flow.gradients)
    if is_collective and flow.weights != flow.gradients:
        raise ScheduleError(
            f"weights go by {flow.weights} and gradients by {flow.gradients}; an all-gather of "
            f"weights and a reduce-scatter of gradients belong together"
        )
    if is_collective and list(homes) != holders:
        raise ScheduleError(
            f"{where}; for all-gathers its homes must be all that hold it, {_ranks(holders)}"
        )
    if not is_collective and (len(homes) > 1 or flow.sharded != Sharded.WEIGHTS):
        raise ScheduleError(
            f"{where}; weights that go by {flow.weights} need one home for all of a stage's state"
        )
    if Route.HOST in (flow.weights, flow.gradients) and flow.weights != flow.gradients:
        raise ScheduleError(
            f"{where}, weights go by {flow.weights} and gradients by {flow.gradients}; the host's "
            f"memory keeps both"
        )
    if Route.TREE in (flow.weights, flow.gradients):
        _check_tree(schedule, flow, holders)


def _check_tree(schedule: Schedule, flow: WeightFlow, holders: list[int]) -> None:
    if flow.weights != flow.gradients:
        raise ScheduleError(
            f"weights go by {flow.weights} and gradients by {flow.gradients}; a tree is for both"
        )
    num_ranks = schedule.num_ranks
    if flow.node_size < 1 or num_ranks % flow.node_size:
        raise ScheduleError(
            f"nodes of {flow.node_size} ranks do not divide {num_ranks} ranks; give a divisor"
        )
    if holders != list(range(num_ranks)) or len(schedule.placement.ranks) != num_ranks:
        raise ScheduleError(
            f"weights that go by a tree need one copy of each stage on every rank, given "
            f"{len(schedule.placement.ranks)} on {_ranks(holders)}"
        )


def check_visits(arrays: OpArrays, visits: WeightVisits) -> None:
    """Check that weights are where they are used and updated, and that collectives agree."""
    _check_steps(arrays, visits.flow)
    if visits.flow.weights not in (Route.GATHER, Route.HOST):
        for visit, source in sources_of_visits(arrays, visits):
            if source.rank == visit.rank:
                raise ScheduleError(
                    f"{arrays.name(visit.node)}: the home of stage {visit.stage} is this rank, "
                    f"which would send the weights of this visit to itself; leave the visit out"
                )
    if visits.homeless:
        node = visits.homeless[0]
        homes = visits.flow.homes[int(arrays.stage[node])]
        host = "the host of " if visits.flow.weights == Route.HOST else ""
        raise ScheduleError(
            f"{arrays.name(node)}: the weights of stage {int(arrays.stage[node])} are not on "
            f"this rank; their home is {host}{_ranks(homes)}, and no visit is open"
        )
    if visits.unmatched:
        raise ScheduleError(_why_unmatched(arrays, visits.unmatched[0]))
    if visits.outdated:
        node = visits.outdated[0]
        raise ScheduleError(
            f"{arrays.name(node)}: other homes have updated their shares of stage "
            f"{int(arrays.stage[node])} since the last iteration; an UNSHARD (U) must stand before "
            f"the first op that reads it"
        )
    if visits.unread:
        node = visits.unread[0]
        above = rank_above(visits.flow, int(arrays.stage[node]), int(arrays.rank[node]))
        raise ScheduleError(
            f"{arrays.name(node)} hands its gradient to rank {above}, which has no REDUCE_GRAD of "
            f"stage {int(arrays.stage[node])} with this number; all ranks must list as many"
        )
    if visits.unfinished:
        raise ScheduleError(
            f"{arrays.name(visits.unfinished[0])}: whole gradients are kept here, so REDUCE_GRAD "
            f"(A) comes once, behind the last W"
        )
    pair = disordered(arrays, visits.flow)
    if pair is not None:
        node, other = pair
        against = f"while {arrays.name(other)} comes there" if other >= 0 else "alone"
        raise ScheduleError(
            f"{arrays.name(node)} calls a collective {against}; all homes of a stage must list "
            f"its visits and reductions in one order"
        )


def _check_steps(arrays: OpArrays, flow: WeightFlow) -> None:
    """Each home runs the STEP of a stage once, and no other rank does."""
    first: dict[tuple[int, int], int] = {}
    for node in arrays.of_step.nonzero()[0].tolist():
        stage, rank = int(arrays.stage[node]), int(arrays.rank[node])
        if not flow.is_home(stage, rank):
            homes = flow.homes[stage]
            alone = "which alone runs" if len(homes) == 1 else "which alone run"
            raise ScheduleError(
                f"{arrays.name(node)}: stage {stage} has its home on {_ranks(homes)}, {alone} "
                f"its STEP"
            )
        if first.setdefault((stage, rank), node) != node:
            raise ScheduleError(
                f"{arrays.name(node)}: {arrays.name(first[stage, rank])} updates stage "
                f"{stage} already; all copies on a rank are one set of parameters, with one STEP"
            )


def _why_unmatched(arrays: OpArrays, node: int) -> str:
    kind, where = list(OpKind)[int(arrays.kind[node])], arrays.name(node)
    if kind == OpKind.UNSHARD:
        return f"{where}: no op reads the weights of this visit"
    if kind == OpKind.RESHARD:
        return f"{where}: no visit is open here that an op has read"
    if kind == OpKind.REDUCE_GRAD:
        return f"{where}: there is no gradient since the last one"
    return f"{where}: no REDUCE_GRAD (A) follows, so this gradient never reaches its home"


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) != 1)} {', '.join(map(str, ranks))}"
