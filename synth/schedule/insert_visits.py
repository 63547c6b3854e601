"""Visits of weights around the ops of a rank: gathered some stages ahead, and freed afterwards."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

from synth.op_kinds import READING, OpKind
from synth.schedule.ops import Op


def with_visits(
    ops: Sequence[Op],
    ahead: int,
    *,
    shares_visit: Callable[[Op], bool] = lambda _: True,
    is_away: Callable[[int], bool] = lambda _: True,
) -> Iterator[Op]:
    """Open a visit for each run of ops that read the weights of one stage, and close it after them.

    Args:
        ops: the ops of a rank, with the REDUCE_GRADs that it is to have.
        ahead: the number of runs before its own at which a visit may open. There is one visit of a
            stage at a time.
        shares_visit: True if an op of the stage of the op before it needs no visit of its own.
        is_away: True for stages whose weights the rank does not keep.
    """
    runs = _runs([op for op in ops if op.kind in READING], shares_visit)
    begins = {run[0]: index for index, run in enumerate(runs)}
    ends = {run[-1]: index for index, run in enumerate(runs)}
    numbers: list[int] = []
    counts: defaultdict[int, int] = defaultdict(int)
    for run in runs:
        numbers.append(counts[run[0].stage])
        counts[run[0].stage] += 1
    opened = 0
    for op in ops:
        index = begins.get(op)
        if index is not None:
            stages_open = {run[0].stage for run in runs[index:opened]}
            while opened < len(runs) and opened <= index + ahead:
                stage = runs[opened][0].stage
                if stage in stages_open:
                    break
                stages_open.add(stage)
                if is_away(stage):
                    yield Op(OpKind.UNSHARD, stage, numbers[opened], op.replica)
                opened += 1
        yield op
        index = ends.get(op)
        if index is not None and is_away(op.stage):
            yield Op(OpKind.RESHARD, op.stage, numbers[index], op.replica)


def _runs(reading: Sequence[Op], shares_visit: Callable[[Op], bool]) -> list[list[Op]]:
    runs: list[list[Op]] = []
    for op in reading:
        if runs and runs[-1][-1].stage == op.stage and shares_visit(op):
            runs[-1].append(op)
        else:
            runs.append([op])
    return runs
