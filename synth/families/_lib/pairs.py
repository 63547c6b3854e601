"""Pairs: an F and the BW of another micro-batch behind it that run at once.

Their kernels share the device: while one of both waits for an exchange among ranks, such as that of
experts, the other one computes (DeepSeek-AI 2024, arXiv 2412.19437, section 3.2.1). With the option
`overlap` a family has them where the costs say that it saves time.
"""

from itertools import pairwise

from synth.families._lib.family import Programs, Setting
from synth.families._lib.options import PAIRS
from synth.op_kinds import OpKind
from synth.schedule.ops import Op


def overlaps(setting: Setting) -> bool:
    """True if F and BW are to run at once, and the time of that is known to be shorter."""
    is_known = any(stage.hidden_us for stage in setting.costs.stages)
    return setting.options.get(PAIRS.name, PAIRS.default) != PAIRS.default and is_known


def before_backwards(setting: Setting, programs: Programs) -> frozenset[Op]:
    """Return each F that has the BW of another micro-batch behind it, if both save time at once."""
    if not overlaps(setting):
        return frozenset()
    stages = setting.costs.stages
    return frozenset(
        op
        for program in programs
        for op, after in pairwise(program)
        if op.kind == OpKind.F and after.kind == OpKind.BW and op.microbatch != after.microbatch
        if stages[op.stage].hidden_us and stages[after.stage].hidden_us
    )
