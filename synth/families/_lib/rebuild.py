"""Recomputation as an option of a family: F keeps its input alone, R rebuilds the rest before B."""

from collections.abc import Iterable, Iterator

from synth.families._lib.family import Programs, Setting
from synth.families._lib.options import ChoiceOption
from synth.kinds import OpKind
from synth.schedule.ops import Op

_KEPT, _REBUILT = "kept", "recompute"

RECOMPUTE = ChoiceOption("recompute", (_KEPT, _REBUILT))


def recomputed(setting: Setting, programs: Programs) -> Programs:
    """The programs, if that was asked for, with an R right before every B or BW.

    R waits for nothing from other ranks, so it runs while the gradient is still on its way.
    """
    if setting.options[RECOMPUTE.name] == _KEPT:
        return programs
    return [list(_with_rebuilds(program)) for program in programs]


def _with_rebuilds(program: Iterable[Op]) -> Iterator[Op]:
    for op in program:
        if op.kind in (OpKind.B, OpKind.BW):
            yield op._replace(kind=OpKind.R)
        yield op
