"""The runtimes that can execute a plan, and the schedules that each of them can run.

PyTorch's `_PipelineScheduleRuntime` and torchtitan take any order of F, B and W from a CSV file.
Neither has an op that rebuilds or moves activations: layers are recomputed within their backward,
by the modules themselves. torchtitan finds the rank of a stage by the name of a schedule.
Megatron-LM runs 1F1B and interleaved 1F1B, and takes the layers of each stage.
"""

from dataclasses import dataclass
from enum import StrEnum

from synth.errors import SynthError
from synth.op_kinds import MOVES, OpKind
from synth.schedule.model import Placement
from synth.schedule.placements import looped, wave
from synth.schedule.recomputation_rules import MEGATRON, TORCHTITAN, RecomputationMenu


class Runtime(StrEnum):
    """A program that executes a plan."""

    SYNTH = "synth"
    TORCH = "torch"
    TORCHTITAN = "torchtitan"
    MEGATRON = "megatron"


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
    def layer_menu(self) -> RecomputationMenu | None:
        """The rules by which layers can be recomputed within their backward; None: any layers."""
        return {Runtime.TORCHTITAN: TORCHTITAN, Runtime.MEGATRON: MEGATRON}.get(self.runtime)

    @property
    def orders_freely(self) -> bool:
        """True if the runtime executes any order of ops, not only those of its own schedules."""
        return self.runtime != Runtime.MEGATRON

    @property
    def runs_pairs(self) -> bool:
        """True if the runtime runs F and BW at once, without a function of the user's own."""
        return self.runtime == Runtime.SYNTH

    def order_on(self, where: Placement, num_micro_batches: int) -> str | None:
        """Return the published schedule that the runtime runs on a placement; None: any order.

        Raises:
            SynthError: it runs none on this number of micro-batches.
        """
        return None if self.orders_freely else _of_megatron(where, num_micro_batches)

    def runs(self, name: str, *, keeps_saved: bool) -> bool:
        """Return True if the runtime can run a published schedule on a placement that it has.

        Args:
            name: of the schedule, with its options.
            keeps_saved: it neither rebuilds nor moves saved activations.
        """
        if self.runtime == Runtime.SYNTH:
            return True
        is_own = self.orders_freely or name.partition(":")[0] in _OF_MEGATRON
        return keeps_saved and is_own

    def why_not_on(self, where: Placement) -> str | None:
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
        if self.runtime == Runtime.MEGATRON and not _is_looped(where):
            return "Megatron-LM places stages as linear or looped:N"
        return None

    def is_default_on(self, where: Placement) -> bool:
        """Return True if a search over all placements includes one: the runtime has it, and it
        holds one copy of each stage, as further copies take memory that is not asked for."""
        return len(where.ranks) == 1 and self.why_not_on(where) is None


# Any schedule that this project's own runtime executes, on one copy of the weights by default.
DEFAULT = Allowed()


def allowed_for(name: str | None) -> Allowed:
    """Return the schedules for a runtime that a plan names; of others, all."""
    return Allowed(Runtime(name)) if name is not None and name in {*Runtime} else DEFAULT


_LINEAR, _INTERLEAVED = _OF_MEGATRON = ("1f1b", "interleaved")


def _is_of_torchtitan(where: Placement) -> bool:
    return _is_looped(where) or where == wave(where.num_ranks)


def _is_looped(where: Placement) -> bool:
    return where == looped(where.num_ranks, where.num_stages // where.num_ranks)


def _of_megatron(where: Placement, num_micro_batches: int) -> str:
    """Return Megatron-LM's schedule on a placement, with the smallest groups that it admits.

    Groups of micro-batches (`--microbatch-group-size-per-virtual-pipeline-stage`) are as large as
    the number of ranks at least, and so is the rest in the last one. Larger ones hold more.

    Raises:
        SynthError: there are fewer micro-batches than ranks, and several stages per rank.
    """
    num_ranks = where.num_ranks
    rounds = where.num_stages // num_ranks
    if rounds == 1:
        return _LINEAR
    if num_micro_batches % num_ranks == 0:
        return f"{_INTERLEAVED}:{rounds}"
    for group in range(num_ranks, num_micro_batches + 1):
        rest = num_micro_batches % group
        if rest == 0 or rest >= num_ranks:
            return f"{_INTERLEAVED}:{rounds},group={group}"
    raise SynthError(
        f"Megatron-LM interleaves at least as many micro-batches as there are ranks, "
        f"{num_ranks}, and {num_micro_batches} are given; give §placement linear"
    )
