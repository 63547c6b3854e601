"""The runtimes that can execute a plan, and the schedules that each of them can run.

PyTorch's `_PipelineScheduleRuntime` and torchtitan take any order of F, B and W from a CSV file.
Neither has an op that rebuilds or moves activations: layers are recomputed within their backward,
by the modules themselves. torchtitan finds the rank of a stage by the name of a schedule.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from synth.op_kinds import MOVES, OpKind

if TYPE_CHECKING:
    from synth.schedule.model import Placement


class Runtime(StrEnum):
    """A program that executes a plan."""

    SYNTH = "synth"
    TORCH = "torch"
    TORCHTITAN = "torchtitan"


@dataclass(frozen=True)
class Allowed:
    """The schedules with which a search may answer.

    Attributes:
        runtime: the program that will execute the plan.
        offloads: saved activations may move to the host's memory or to another rank.
    """

    runtime: Runtime = Runtime.SYNTH
    offloads: bool = False

    @property
    def further_ops(self) -> frozenset[OpKind]:
        """The kinds of op besides F, B, W, BW and STEP; see `Problem.further_ops`."""
        if self.runtime != Runtime.SYNTH:
            return frozenset()
        return frozenset((OpKind.R, *MOVES)) if self.offloads else frozenset((OpKind.R,))

    @property
    def recomputes_layers(self) -> bool:
        """True if single layers can be recomputed within their backward, whichever they are."""
        return self.runtime != Runtime.TORCHTITAN

    def why_not_on(self, where: "Placement") -> str | None:
        """Return why the runtime cannot run schedules on a placement; None: it can."""
        copies = len(where.ranks)
        if self.runtime == Runtime.SYNTH:
            return None
        if copies > 1:
            return f"{self.runtime} holds one copy of each stage, not {copies}"
        if where.backward_ranks is not None:
            return f"{self.runtime} runs forward and backward of a stage on one rank"
        if self.runtime == Runtime.TORCHTITAN and not _is_of_torchtitan(where):
            return "torchtitan places stages as linear, looped:N or v"
        return None

    def is_default_on(self, where: "Placement") -> bool:
        """Return True if a search over all placements includes one: the runtime has it, and it
        holds one copy of each stage, as further copies take memory that is not asked for."""
        return len(where.ranks) == 1 and self.why_not_on(where) is None


# Any schedule that this project's own runtime executes, on one copy of the weights by default.
DEFAULT = Allowed()


def _is_of_torchtitan(where: "Placement") -> bool:
    from synth.schedule.placements import looped, wave

    rounds = where.num_stages // where.num_ranks
    return where in (looped(where.num_ranks, rounds), wave(where.num_ranks))
