"""Recomputation as an option of a family: F keeps only its input, R rebuilds the rest before B."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from synth.families._lib.family import Programs, Setting
from synth.families._lib.options import ChoiceOption
from synth.op_kinds import OpKind
from synth.schedule.ops import Op

_KEPT, _REBUILT = "kept", "recompute"

RECOMPUTE = ChoiceOption("recompute", (_KEPT, _REBUILT))

# The same for families of which it is only tried if it is asked for.
RECOMPUTE_IF_ASKED = replace(RECOMPUTE, untried=(_REBUILT,))


def recomputed(setting: Setting, programs: Programs) -> Programs:
    """Insert an R right before every B or BW, if the option says so.

    R waits for no other rank, so it runs while the gradient is still in transit.
    """
    if setting.options[RECOMPUTE.name] == _KEPT:
        return programs
    return [list(_with_rebuilds(program)) for program in programs]


def _with_rebuilds(program: Iterable[Op]) -> Iterator[Op]:
    for op in program:
        if op.kind in (OpKind.B, OpKind.BW):
            yield op._replace(kind=OpKind.R)
        yield op
