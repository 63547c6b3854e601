"""Updates between the ops of a program: families that never flush the pipeline."""

from collections.abc import Sequence

from synth.errors import SynthError
from synth.families._lib.family import Setting, forwards
from synth.families._lib.options import Count
from synth.op_kinds import OpKind
from synth.schedule.ops import Op

# The number of micro-batches of an update; 0: chosen by the family.
EVERY = Count("every", 0, least=1)


def one_forward_one_backward(setting: Setting, in_flight: Sequence[int]) -> list[list[Op]]:
    """Each stage fills up to `in_flight[s]` micro-batches, then alternates F and BW."""
    m = setting.num_micro_batches
    programs = []
    for s, most in enumerate(in_flight):
        warmup = min(m, most - 1)
        program = forwards(s, 0, warmup)
        for j in range(m):
            program += forwards(s, warmup + j, min(warmup + j + 1, m))
            program.append(Op(OpKind.BW, s, j))
        programs.append(program)
    return programs


def with_updates(programs: Sequence[Sequence[Op]], every: int) -> list[list[Op]]:
    """Put STEP(s, v) behind the last backward of its `every` micro-batches."""
    return [_with_updates(program, every) for program in programs]


def _with_updates(program: Sequence[Op], every: int) -> list[Op]:
    left: dict[tuple[int, int], int] = {}
    found = []
    for op in program:
        found.append(op)
        if op.kind in (OpKind.BW, OpKind.W):
            batch = op.stage, op.microbatch // every
            left[batch] = left.get(batch, every) - 1
            if not left[batch]:
                found.append(Op(OpKind.STEP, *batch))
    return found


def batch_size(setting: Setting, least: int) -> int:
    """The micro-batches of an update: the option's, or the fewest from `least` on that divide all.

    Raises:
        SynthError: they do not divide the micro-batches, or there are fewer than `least`.
    """
    m, given = setting.num_micro_batches, setting.count(EVERY.name)
    if given:
        if m % given:
            raise SynthError(f"an update every {given} micro-batches does not divide {m} of them")
        return given
    found = next((k for k in range(max(1, least), m + 1) if m % k == 0), None)
    if found is None:
        raise SynthError(
            f"an update needs {least} micro-batches on {setting.num_ranks} ranks, given {m}"
        )
    return found
