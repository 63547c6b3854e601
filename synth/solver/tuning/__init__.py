"""Numeric constants of the solver, one frozen dataclass for each component.

Limits of size and effort are here, and shares of time; nothing here changes what is correct, only
how long it takes. `notes/solver.md` says where values were measured. Units are in the names:
`_s` seconds, `_us` microseconds, `_share` a part of a whole from 0 to 1, `_ops` F, B and W ops.
"""

from synth.solver.tuning.bounds import (
    BOUND_POLICY,
    DESTRUCTIVE,
    FORWARD_SPACING,
    IDLE_TIME,
    JOINT_SPACING,
    RANK_SUBSETS,
    RECHECK,
)
from synth.solver.tuning.cpsat import CPSAT, EXACT_MODEL
from synth.solver.tuning.evaluate import EVALUATION, SCENARIOS
from synth.solver.tuning.improve import (
    ANNEALING,
    BANDIT,
    EXTEND,
    LIST_SCHEDULING,
    PUBLISHED,
    RELEASE_DATES,
    ROBUSTNESS,
    SHORT_INSTANCE,
    WINDOWS,
)
from synth.solver.tuning.modulo import (
    BUILDING_BLOCKS,
    FLUSH_FREE,
    INTERVAL_SEARCH,
    MODULO,
    SEVERAL_MICRO_BATCHES,
    STEADY_STATE,
)
from synth.solver.tuning.search import SEARCH
from synth.solver.tuning.weight_passing import WEIGHT_PASSING

__all__ = [
    "ANNEALING",
    "BANDIT",
    "BOUND_POLICY",
    "BUILDING_BLOCKS",
    "CPSAT",
    "DESTRUCTIVE",
    "EVALUATION",
    "EXACT_MODEL",
    "EXTEND",
    "FLUSH_FREE",
    "FORWARD_SPACING",
    "IDLE_TIME",
    "INTERVAL_SEARCH",
    "JOINT_SPACING",
    "LIST_SCHEDULING",
    "MODULO",
    "PUBLISHED",
    "RANK_SUBSETS",
    "RECHECK",
    "RELEASE_DATES",
    "ROBUSTNESS",
    "SCENARIOS",
    "SEARCH",
    "SEVERAL_MICRO_BATCHES",
    "SHORT_INSTANCE",
    "STEADY_STATE",
    "WEIGHT_PASSING",
    "WINDOWS",
]
