"""One problem of each kind that the solver meets: to try time limits and parts of the search on."""

from benchmarks import tight_caps
from benchmarks.solver.suites import bidirectional, published, table, unequal, v_shaped
from synth.solver.problem import Problem


def sample_problems() -> dict[str, Problem]:
    """By name; from tight caps to where a published schedule is optimal already."""
    return {
        "half": table.problem(8, 32, 0.5),
        "three quarters": table.problem(8, 32, 0.75),
        "16 ranks": table.problem(16, 64, 0.75),
        "published 1x": published.problem("zb-6.2b-p8-m24", 1),
        "vocabulary 1x": unequal.problem(unequal.with_vocabulary(), 1),
        "jitter 0.75x": unequal.problem(unequal.jittered(0), 0.75),
        "v half": v_shaped.problem(8, 32, 0.5),
        "boundary buffers": tight_caps.realistic(0).problem,
        "bidirectional": bidirectional.problem("bidirectional", 8, 16, split=True),
    }
