"""Numeric constants of the decisions around the solver, one frozen dataclass for each component.

Limits of size and effort are here, and shares of time; nothing here changes what is correct, only
how long it takes and how good the answer is. Units are in the names: `_s` seconds, `_ops` F, B and
W ops, `_share` a part of a whole from 0 to 1, `_share_of_left` of the time that remains,
`_share_of_limit` of the time limit, `_factor` a multiple of the best value.
"""

from synth.plan.tuning.best_variant import BEST_VARIANT
from synth.plan.tuning.finished_plan import EXPLAIN, REASON, REPROVE
from synth.plan.tuning.judging import JUDGED_SCHEDULES, JUDGING, LIST_JUDGING
from synth.plan.tuning.memory_curve import CURVE, LEAST_CAP, STEADY_CAP
from synth.plan.tuning.moving_families import MOVING_FAMILIES
from synth.plan.tuning.offload import OFFLOAD
from synth.plan.tuning.partition import (
    BALANCE,
    LIFETIME_CUT,
    PARTITION_BOUNDS,
    PARTITION_QUEUE,
    SEVERAL_STAGES,
    TIGHT_CAPS,
)
from synth.plan.tuning.race import CUT_HALVING, CUT_MOVES, LIST_TRIALS, PARTITION_TRIALS, RACE
from synth.plan.tuning.recompute import (
    CHOICE_MOVES,
    CHOICE_PROOF,
    LAYER_MENU,
    LAYER_SEARCH,
    RECOMPUTE_BOUNDS,
    RECOMPUTE_TRIALS,
    REPARTITION,
)
from synth.plan.tuning.sharded_pipelines import SHARDED_PIPELINES

__all__ = [
    "BALANCE",
    "BEST_VARIANT",
    "CHOICE_MOVES",
    "CHOICE_PROOF",
    "CURVE",
    "CUT_HALVING",
    "CUT_MOVES",
    "EXPLAIN",
    "JUDGED_SCHEDULES",
    "JUDGING",
    "LAYER_MENU",
    "LAYER_SEARCH",
    "LEAST_CAP",
    "LIFETIME_CUT",
    "LIST_JUDGING",
    "LIST_TRIALS",
    "MOVING_FAMILIES",
    "OFFLOAD",
    "PARTITION_BOUNDS",
    "PARTITION_QUEUE",
    "PARTITION_TRIALS",
    "RACE",
    "REASON",
    "RECOMPUTE_BOUNDS",
    "RECOMPUTE_TRIALS",
    "REPARTITION",
    "REPROVE",
    "SEVERAL_STAGES",
    "SHARDED_PIPELINES",
    "STEADY_CAP",
    "TIGHT_CAPS",
]
