"""PyTorch's schedule files with collectives and transfers, for stages that FSDP2 shards.

The form `compute_comms` of `_PipelineScheduleRuntime._load_csv` lists, besides compute, UNSHARD (an
all-gather of a stage's parameters), RESHARD (they are freed), REDUCE_GRAD (a reduce-scatter of its
gradients), SEND and RECV. It is written for data-parallel pipelines whose state is sharded over
the ranks of each stage; all of them run the same file, one row per rank of a pipeline.
"""

import csv
import io
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import NamedTuple

from synth.errors import SynthError
from synth.interop.loss_order import in_loss_order
from synth.interop.torch_csv import LETTERS
from synth.op_kinds import OpKind
from synth.schedule.model import Schedule
from synth.schedule.ops import Op
from synth.schedule.weight_flow import Route


class _Action(NamedTuple):
    """A cell of the file."""

    stage: int
    kind: str
    microbatch: int | None = None

    def __str__(self) -> str:
        number = "" if self.microbatch is None else str(self.microbatch)
        return f"{self.stage}{self.kind}{number}"


def to_torch_comms_csv(schedule: Schedule) -> str:
    """Write the pipeline of data-parallel pipelines with sharded state in the form `compute_comms`.

    PyTorch's W needs a stage's parameters, so a stage is resharded after the last op of a visit, W
    included. Its REDUCE_GRAD frees them and scales the gradients, so there is one, at the end of
    the stage's last visit. Micro-batches are numbered by `in_loss_order`.

    Raises:
        SynthError: the pipelines or their ops cannot be expressed.
    """
    _check(schedule)
    ranks = schedule.placement.ranks[0]
    programs = in_loss_order(schedule).programs[: len(set(ranks))]
    rows = [list(_actions(program)) for program in programs]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(_with_transfers(rows, ranks))
    return text.getvalue()


def _check(schedule: Schedule) -> None:
    flow, copies = schedule.weights, schedule.placement.ranks
    is_gathered = flow is not None and flow.weights == Route.GATHER
    num_ranks = len(set(copies[0]))
    rows = tuple(tuple(d * num_ranks + rank for rank in copies[0]) for d in range(len(copies)))
    homes = tuple(zip(*copies, strict=True))
    first = {op.microbatch for op in schedule.programs[0] if op.kind in LETTERS}
    is_numbered = first == set(range(schedule.num_micro_batches // len(copies)))
    orders = [[(op.kind, op.stage) for op in program] for program in schedule.programs]
    is_alike = orders == orders[:num_ranks] * len(copies)
    fits = is_gathered and is_numbered and is_alike and copies == rows
    if flow is None or not fits or flow.homes != homes:
        raise SynthError(
            f"the schedule {schedule.name!r} passes weights in a way that PyTorch's runtime does "
            f"not have; it has pipelines whose stages FSDP shards over data-parallel ranks "
            f"(synth solve --data-parallel N)"
        )


def _actions(program: Sequence[Op]) -> Iterator[_Action]:
    """The compute and the collectives of a rank of the first pipeline."""
    ends = _ends_of_visits(program)
    for place, op in enumerate(program):
        if op.kind in LETTERS:
            yield _Action(op.stage, LETTERS[op.kind], op.microbatch)
        elif op.kind == OpKind.UNSHARD:
            yield _Action(op.stage, "UNSHARD")
        elif op.kind not in (OpKind.RESHARD, OpKind.REDUCE_GRAD, OpKind.STEP):
            raise SynthError(
                f"PyTorch's runtime has no op such as {op}; solve with --recompute none, and keep "
                f"saved activations on their ranks"
            )
        if place in ends:
            if ends[place]:
                yield _Action(op.stage, "REDUCE_GRAD")
            yield _Action(op.stage, "RESHARD")


def _ends_of_visits(program: Sequence[Op]) -> dict[int, bool]:
    """The places of the last ops of all visits, and whether it is the stage's last visit."""
    ends: dict[int, bool] = {}
    last: dict[int, int] = {}
    for place, op in enumerate(program):
        if op.kind in (OpKind.RESHARD, OpKind.STEP):
            continue
        if op.kind == OpKind.UNSHARD and op.stage in last:
            ends[last[op.stage]] = False
        last[op.stage] = place
    return ends | dict.fromkeys(last.values(), True)


def _with_transfers(rows: Sequence[Sequence[_Action]], ranks: Sequence[int]) -> list[list[_Action]]:
    """Add SEND after each op whose output another rank reads, and RECV there at the same time.

    This is the order of PyTorch's own lowering, in which no rank waits for a transfer that another
    one starts later.
    """
    left = [list(reversed(row)) for row in rows]
    made: list[list[_Action]] = [[] for _ in rows]
    known: list[set[_Action]] = [set() for _ in rows]
    while any(left):
        progress = False
        for rank, open_actions in enumerate(left):
            if not open_actions or not _is_ready(open_actions[-1], known[rank], ranks):
                continue
            action, progress = open_actions.pop(), True
            made[rank].append(action)
            known[rank].add(action)
            target = _target(action, len(ranks))
            if target is not None and ranks[target] != rank:
                flow = "F" if action.kind == "F" else "B"
                made[rank].append(action._replace(kind=f"SEND_{flow}"))
                received = _Action(target, f"RECV_{flow}", action.microbatch)
                made[ranks[target]].append(received)
                known[ranks[target]].add(received)
        if not progress:
            raise SynthError(
                "ops and transfers of the schedule wait for each other in a cycle, so they have no "
                "order in the form compute_comms; synth check names the cycle"
            )
    return made


def _target(action: _Action, num_stages: int) -> int | None:
    """The stage that reads the output of an op; None: there is none."""
    if action.kind not in ("F", "I", "B"):
        return None
    stage = action.stage + (1 if action.kind == "F" else -1)
    return stage if 0 <= stage < num_stages else None


def _is_ready(action: _Action, done: Set[_Action], ranks: Sequence[int]) -> bool:
    """True if the input of an op is on its rank or on its way there."""
    before = {"F": action.stage - 1, "I": action.stage + 1, "B": action.stage + 1}
    source = before.get(action.kind, -1)
    if not 0 <= source < len(ranks):
        return True
    flow = "F" if action.kind == "F" else "B"
    sources: Mapping[str, tuple[str, ...]] = {"F": ("F",), "B": ("I", "B")}
    return any(
        _Action(*cell) in done
        for cell in (
            (action.stage, f"RECV_{flow}", action.microbatch),
            *((source, kind, action.microbatch) for kind in sources[flow]),
        )
    )
