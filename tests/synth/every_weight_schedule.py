"""All schedules of a tiny problem with weight passing: every order, every place of U and A.

Nothing of the search is used: what follows from what is written here once more, and the verifier
judges each schedule.
"""

from collections.abc import Iterator
from itertools import combinations_with_replacement, product

from synth.op_kinds import OpKind
from synth.schedule.error import ScheduleError
from synth.schedule.model import Buffering, Schedule
from synth.schedule.ops import Op
from synth.schedule.verify import verify
from synth.solver.weight_passing.problem import WeightMovement, WeightPassingProblem

F, B, W, BW = OpKind.F, OpKind.B, OpKind.W, OpKind.BW

BUFFERINGS = [Buffering(*pair) for pair in ((0, 0), (1, 2), (99, 999))]


def orders(num_stages: int, micro_batches: list[int], *, splits: bool = True) -> Iterator[list[Op]]:
    """All orders of a rank's F, B, W and BW that its micro-batches allow by themselves."""
    kinds = list(product(("split", "fused") if splits else ("fused",), repeat=num_stages))
    for chosen in product(kinds, repeat=len(micro_batches)):
        needs: dict[Op, set[Op]] = {}
        for j, of_stage in zip(micro_batches, chosen, strict=True):
            before: Op | None = None
            chain = [Op(F, s, j) for s in range(num_stages)]
            for s in reversed(range(num_stages)):
                back = Op(BW if of_stage[s] == "fused" else B, s, j)
                chain.append(back)
                if of_stage[s] == "split":
                    needs[Op(W, s, j)] = {back}
            for op in chain:
                needs[op] = set() if before is None else {before}
                before = op
        yield from _extensions(needs, [])


def _extensions(needs: dict[Op, set[Op]], done: list[Op]) -> Iterator[list[Op]]:
    if len(done) == len(needs):
        yield list(done)
        return
    for op, before in needs.items():
        # Micro-batches are alike: those of a kind and stage are taken in order.
        first = min(o for o in needs if o[:2] == op[:2] and o not in done) if op not in done else op
        if op not in done and op == first and before <= set(done):
            yield from _extensions(needs, [*done, op])


def with_all_visits(order: list[Op], stage: int, *, early: bool = False) -> Iterator[list[Op]]:
    """All ways to bring a stage's weights for the ops of an order that read them.

    Args:
        order: of a rank's ops.
        stage: whose weights they read.
        early: only visits that begin as early as they may, which without a memory limit are best.

    No RESHARD is listed: the last reader frees the weights, and nothing frees them sooner.
    """
    readers = [i for i, op in enumerate(order) if op.stage == stage and op.kind in (F, B, BW)]
    for cuts in product((False, True), repeat=len(readers) - 1):
        firsts = [readers[0], *(r for r, cut in zip(readers[1:], cuts, strict=True) if cut)]
        lasts = [r for r, cut in zip(readers, cuts, strict=False) if cut]
        floors = [0, *(last + 1 for last in lasts)]
        ends = floors if early else firsts
        places = [range(floor, end + 1) for floor, end in zip(floors, ends, strict=True)]
        for begins in product(*places):
            found: list[Op] = []
            for i, op in enumerate(order):
                found += [Op(OpKind.UNSHARD, stage, n) for n, at in enumerate(begins) if at == i]
                found.append(op)
            yield found


def ring_programs(
    passing: WeightPassingProblem, rank: int, *, splits: bool = True, early: bool = False
) -> list[list[Op]]:
    """All programs of a rank on a ring."""
    num_stages, p, flow = len(passing.stages), passing.num_ranks, passing.flow()
    away = [s for s in range(num_stages) if not flow.is_home(s, rank)]
    mine = list(range(rank, passing.problem.num_micro_batches, p))
    found = []
    for order in orders(num_stages, mine, splits=splits):
        programs = [order]
        for stage in away:
            programs = [
                more for one in programs for more in with_all_visits(one, stage, early=early)
            ]
        found += [[op._replace(replica=rank) for op in program] for program in programs]
    return found


def gather_programs(passing: WeightPassingProblem, *, splits: bool = True) -> list[list[Op]]:
    """All programs of a rank with all-gathers; rounds stand for micro-batches.

    A REDUCE_GRAD may stand anywhere behind a W of its stage, once or after each W.
    """
    num_stages = len(passing.stages)
    found = []
    for order in orders(num_stages, list(range(passing.rounds)), splits=splits):
        programs = [order]
        for stage in range(num_stages):
            programs = [more for one in programs for more in _reduced(one, stage)]
            programs = [more for one in programs for more in with_all_visits(one, stage)]
        found += programs
    return found


def _reduced(program: list[Op], stage: int) -> Iterator[list[Op]]:
    adds = [i for i, op in enumerate(program) if op.stage == stage and op.kind in (W, BW)]
    for count in range(1, len(adds) + 1):
        for places in combinations_with_replacement(range(adds[0], len(program)), count):
            # One W at least before each, and none behind the last one.
            cuts = [-1, *places]
            runs = [[i for i in adds if a < i <= b] for a, b in zip(cuts, places, strict=False)]
            if all(runs) and sum(map(len, runs)) == len(adds):
                found: list[Op] = []
                for i, op in enumerate(program):
                    found.append(op)
                    found += [
                        Op(OpKind.REDUCE_GRAD, stage, n) for n, at in enumerate(places) if at == i
                    ]
                yield found


def value_us(
    passing: WeightPassingProblem, programs: list[list[Op]], buffering: Buffering
) -> int | None:
    """The makespan of programs on all ranks; None: the verifier refuses them."""
    problem = passing.problem
    schedule = Schedule(
        problem.placement,
        problem.num_micro_batches,
        tuple(map(tuple, programs)),
        buffering=buffering,
        weights=passing.flow(),
    )
    try:
        return verify(schedule, problem.costs, problem.caps_bytes)[1].makespan_us
    except ScheduleError:
        return None


def on_all_ranks(passing: WeightPassingProblem, program: list[Op]) -> list[list[Op]]:
    """The same program on each rank, of its own micro-batches."""
    p = passing.num_ranks
    return [
        [
            op._replace(replica=r, microbatch=op.microbatch * p + r)
            if op.kind in (F, B, W, BW)
            else op._replace(replica=r)
            for op in program
        ]
        for r in range(p)
    ]


def least_us(passing: WeightPassingProblem, *, splits: bool = True) -> int | None:
    """The least makespan of all schedules; None: none keeps the limits.

    With all-gathers all ranks run one program (`test_no_pair_of_programs_beats_one_for_all_ranks`).
    """
    if passing.movement == WeightMovement.GATHER:
        candidates = [on_all_ranks(passing, one) for one in gather_programs(passing, splits=splits)]
    else:
        ranks = range(passing.num_ranks)
        every = (ring_programs(passing, rank, splits=splits) for rank in ranks)
        candidates = [list(programs) for programs in product(*every)]
    values = (value_us(passing, each, buffering) for each in candidates for buffering in BUFFERINGS)
    return min((us for us in values if us is not None), default=None)
