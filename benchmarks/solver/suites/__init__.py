"""The suites by name; each is one module with a `SUITE`."""

from benchmarks.solver.case import Suite
from benchmarks.solver.suites import (
    ablation,
    bidirectional,
    partition,
    period,
    published,
    scale,
    slack,
    table,
    time_limits,
    unequal,
    v_shaped,
)

_MODULES = (
    table,
    published,
    unequal,
    v_shaped,
    bidirectional,
    time_limits,
    ablation,
    scale,
    partition,
    period,
    slack,
)

SUITES: dict[str, Suite] = {module.SUITE.name: module.SUITE for module in _MODULES}
