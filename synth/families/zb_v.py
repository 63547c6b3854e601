"""ZB-V: no bubble at 1F1B's memory (Qi et al. 2023, arXiv 2401.10241; 2024, arXiv 2405.15362).

The papers draw a schedule for F = B = W, and measure those that their scheduler makes for the
measured times. Here both are made, and the better one is taken.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

from synth.errors import SynthError
from synth.families import zb_v_greedy
from synth.families._lib.buffering_choice import patient, patient_outcome
from synth.families._lib.family import Family, Programs, Setting
from synth.families._lib.v_passes import averaged, costs_by_pass
from synth.families._lib.v_shape import Drawn, fitted_to_memory
from synth.op_kinds import OpKind
from synth.schedule.model import Schedule
from synth.schedule.ops import Op

F, B, W = OpKind.F, OpKind.B, OpKind.W


def make(setting: Setting) -> Programs:
    """The drawn schedule fitted to the setting's times, or the released scheduler's if shorter.

    Both hold D micro-batches at most (2D of a stage).
    """
    made = [tuple(tuple(program) for program in programs) for programs in _made(setting)]
    if not made:
        raise SynthError("zb-v has no schedule of less makespan than the one that is known")
    return min(made, key=lambda programs: _rank(setting, programs))


def _rank(setting: Setting, programs: tuple[tuple[Op, ...], ...]) -> tuple[bool, int, int]:
    """Programs' rank among others: within the memory limits first, then by the objective."""
    made = Schedule(setting.placement, setting.num_micro_batches, programs, "")
    _, found = patient_outcome(setting, made)
    return found.exceeds_caps, setting.objective.value_us(found), found.period_us


def _made(setting: Setting) -> Iterator[Programs]:
    made = drawn(setting.num_ranks, setting.num_micro_batches)
    with suppress(SynthError):
        yield fitted_to_memory(setting, made.order, made.peak)
    pass_costs = averaged(costs_by_pass(setting.costs, setting.num_micro_batches))
    with suppress(SynthError):
        yield zb_v_greedy.released(pass_costs, made.peak)


def drawn(num_ranks: int, num_micro_batches: int) -> Drawn:
    """The parallelogram of all ranks."""
    order = [_drawn(num_ranks, rank, num_micro_batches) for rank in range(num_ranks)]
    return Drawn(order, 2 * num_ranks)


def _drawn(num_ranks: int, rank: int, num_micro_batches: int) -> list[Op]:
    """A rank of the parallelogram that has no bubble for F = B = W, from 2D − 1 micro-batches on.

    With fewer it is drawn for 2D − 1, and the ops of the micro-batches that are not there left out.

    (1) F fills memory until the first micro-batch is back, (2) F, B and W of the second half until
    the first B reaches the first half, (3) all six in turn, (4) B ahead of W, (5) W fills the end.
    """
    up, drawn = num_ranks - rank, max(num_micro_batches, 2 * num_ranks - 1)
    first, second = rank, 2 * num_ranks - 1 - rank
    first_half = [(F, first), (B, first), (W, first)]
    second_half = [(F, second), (B, second), (W, second)]
    passes = [(F, first)] * (2 * up - 1) + [(F, second), (F, first)] * rank  # (1)
    passes += second_half * up  # (2)
    whole = drawn - num_ranks - up + 1
    passes += (first_half + second_half) * whole  # (3)
    passes += (first_half[1:] + second_half) * (up - 1)  # (3), F of the first half used up
    passes += [(B, first), (B, second)] * rank + first_half[1:] * up  # (4)
    passes += [(W, second)] * rank + [(W, first)] * rank  # (5)
    return _numbered(passes, num_micro_batches)


def _numbered(passes: list[tuple[OpKind, int]], num_micro_batches: int) -> list[Op]:
    """Passes as ops: those of one kind and stage take micro-batches in order, up to the last."""
    counts: Counter[tuple[OpKind, int]] = Counter()
    program = []
    for kind, stage in passes:
        if counts[kind, stage] < num_micro_batches:
            program.append(Op(kind, stage, counts[kind, stage]))
        counts[kind, stage] += 1
    return program


FAMILY = Family(
    "zb-v",
    "Qi et al. 2023, arXiv 2401.10241; 2024, arXiv 2405.15362",
    make,
    "v",
    timed=True,
    reads_limits=True,
    buffering=patient,
)
