"""The handlers of a rank: each runs the instructions of one subject, on one table of values."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from synth.errors import SynthError
from synth.op_kinds import OpKind

from ..base.rank_context import RankContext
from ..gradients.reductions import Reductions
from ..stage.offload_ops import OffloadOps
from ..stage.stage_ops import StageOps
from ..transport.thread_order import ThreadOrder
from ..weights.kept_protocol import KeptProtocol
from ..weights.versions import VersionedWeights
from ..weights.weight_passing import WeightPassing
from .transfers import RankTransfers
from .updates import Updates


@dataclass(frozen=True)
class RankHandlers:
    """The handlers of one rank.

    Attributes:
        moves: offloads saved activations to the host, and for other ranks.
        ops: runs the forwards and backwards of stages.
        weight_passing: moves weights and their gradients; None: weights stay.
        versions: gives ops their versions of the weights; None: every op reads the newest ones.
        transfers: sends and receives values.
        updates: reduces gradients, and carries out STEPs.
    """

    moves: OffloadOps
    ops: StageOps
    weight_passing: WeightPassing | None
    versions: VersionedWeights | None
    transfers: RankTransfers
    updates: Updates

    @classmethod
    def of(
        cls,
        context: RankContext,
        kept: Mapping[int, KeptProtocol] | None,
        order: ThreadOrder | None,
        reductions: Reductions,
    ) -> Self:
        """Make the handlers that a rank's schedule needs; arguments as of `CompiledProgram`.

        Raises:
            SynthError: weights are passed, and `kept` is missing; or backwards are to read newer
                weights than their forwards kept.
        """
        lowered = context.lowered
        moves = OffloadOps(context.ops, context.stages, context.slots, context.table)
        rebuilt = {op[1:] for each in lowered.ops for op in each if op.kind == OpKind.R}
        ops = StageOps(context, moves, rebuilt)
        weight_passing = _weight_passing(context, kept, order)
        versions = None if lowered.versions is None else VersionedWeights(context)
        return cls(
            moves,
            ops,
            weight_passing,
            versions,
            RankTransfers(context, moves, weight_passing),
            Updates(context, weight_passing, reductions),
        )


def _weight_passing(
    context: RankContext, kept: Mapping[int, KeptProtocol] | None, order: ThreadOrder | None
) -> WeightPassing | None:
    if context.lowered.visits is None:
        return None
    if kept is None:
        raise SynthError(
            "this schedule passes weights, and nothing says what this rank keeps of its "
            "stages; give it, or run a schedule whose weights stay"
        )
    return WeightPassing(context, kept, order)
