"""The variables of the exact model: a start for each op, origins of ranks, and fusions."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from synth.objective import Objective
from synth.solver.cpsat.fusion import Fusion
from synth.solver.cpsat.memory.precedences import Before
from synth.solver.cpsat.or_tools import cp_model
from synth.solver.instance.instance import SPLIT, F, Instance, Node, OpIndex
from synth.solver.tuning import EXACT_MODEL


class OpVariables:
    """The starts of the ops of some ranks.

    Attributes:
        ranks, copies: those modelled.
        longest_us: the longest span of ops that are modelled.
        far_us: no variable of time need be larger.
        start: by op.
        origin: by rank, the moment from which its time counts to the period.
        fusions: by stage copy, where B and W may be fused.
    """

    def __init__(
        self, instance: Instance, ranks: Iterable[int], objective: Objective, longest_us: int
    ) -> None:
        """Begin a model without variables; see `add_starts`."""
        self.cp = cp_model.CpModel()
        self.instance, self.objective, self.longest_us = instance, objective, longest_us
        # A rank's time is within the longest, and it begins at the latest when that of the ranks
        # before it ends.
        self.far_us = 4 * longest_us
        self.ranks = sorted(ranks)
        self.copies = sorted(copy for rank in self.ranks for copy in instance.held[rank])
        self.start: dict[Node, cp_model.LinearExpr] = {}
        self.origin: dict[int, cp_model.IntVar | int] = {}
        self.fusions: dict[int, Fusion] = {}

    def end(self, copy: int, op_index: OpIndex) -> cp_model.LinearExpr:
        """Return the end of an op."""
        return self.start[copy, op_index] + self.duration_us(copy, op_index)

    def duration_us(self, copy: int, op_index: OpIndex) -> cp_model.LinearExpr | int:
        """Return the duration of an op, which depends on whether it is fused."""
        if copy in self.fusions:
            return self.fusions[copy].duration_us(op_index)
        return self.instance[copy].duration_us[op_index.kind]

    @property
    def fuses_all(self) -> bool:
        """True if B and W may be fused on every copy of the problem."""
        return len(self.fusions) == len(self.instance)

    def precede(self, copy: int, before: Before) -> cp_model.Constraint:
        """Let an op of a copy start after the end of another one."""
        return self.cp.add(self.start[copy, before.second] >= self.end(copy, before.first))

    def add_fusions(self, most_counted: int) -> None:
        """Let the search decide which B and W to fuse, where the model can; see `can_fuse`."""
        # The order of reductions depends on what is fused, also where that gains nothing.
        matters = any(len(stages) > 1 for stages in self.instance.reductions.values())
        for copy in self.copies:
            gains = matters or self.instance[copy].gains_by_fusion
            if gains and can_fuse(self.instance, copy, most_counted):
                self.fusions[copy] = Fusion(self.cp, self.instance, copy, self.start)


def can_fuse(
    instance: Instance, copy: int, most_counted: int = EXACT_MODEL.most_counted_ops
) -> bool:
    """Return True if the model has BW on a stage copy: it is alone, or its rank has few ops.

    Args:
        most_counted: ops of a rank with several copies up to which memory is counted by literals.
    """
    held = instance.held[instance[copy].rank]
    num_ops = len(SPLIT) * sum(instance[other].num_micro_batches for other in held)
    return len(held) == 1 or num_ops <= most_counted


def can_fuse_all(instance: Instance) -> bool:
    """Return True if the exact model of all ranks has BW wherever BW gains."""
    copies = enumerate(instance.copies)
    return all(can_fuse(instance, index) or not copy.gains_by_fusion for index, copy in copies)


# Adds the starts to a model that has none.
AddStarts = Callable[[OpVariables], None]


def add_starts(ops: OpVariables) -> None:
    """Add a start per op: not before the pipeline above can have delivered, not after the end."""
    instance, objective = ops.instance, ops.objective
    origins = instance.origins_us
    for rank in ops.ranks if objective.periods else ():
        if origins is not None:
            ops.origin[rank] = origins[rank]
        else:
            ops.origin[rank] = ops.cp.new_int_var(0, 2 * ops.longest_us, f"origin{rank}")
    for copy in ops.copies:
        head, slowest = instance.head_us[copy], instance.slowest_f_us[copy]
        rank = instance[copy].rank
        latest_us = ops.longest_us
        if objective.makespans == 0:
            latest_us += origins[rank] if origins else 2 * ops.longest_us
        for op_index in instance.op_indices(copy):
            # At least k forwards have passed the slowest stage up to here.
            earliest = head + op_index.microbatch * slowest
            latest = max(earliest, latest_us)
            is_first = op_index == (F, 0) and copy == instance.held[rank][0]
            if is_first and objective.periods and origins:
                latest = earliest
            name = f"{op_index.kind}{copy}.{op_index.microbatch}"
            ops.start[copy, op_index] = ops.cp.new_int_var(earliest, latest, name)
