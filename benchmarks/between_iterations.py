"""The cost of posting a rank's first receives only behind the last op of an iteration.

    python -m benchmarks.between_iterations plan.json …

Runs the programs of plans back to back: as the executor does, and as if transfers at the boundary
of two iterations delayed no op. It uses the plan's own links, and slower ones, whose transfers take
given shares of a mean F.
"""

import sys
from pathlib import Path

from benchmarks.solver.back_to_back import iteration_ends_us
from synth.op_kinds import OpKind
from synth.profile.links import Link, Links
from synth.schedule.files.plan_file import Plan
from synth.schedule.lowering.lower import Lowered, lower

_SHARES = (None, 0.1, 0.5, 1.0)
_ITERATIONS = 8
_FIRST = 2


def main() -> None:
    """Print a line for each plan and link."""
    print(f"{'plan':36}{'transfer':>14}{'in time ms':>12}{'executed ms':>12}{'lost %':>8}")
    for name in sys.argv[1:]:
        lowered, _ = Plan.load(Path(name)).check()
        for share in _SHARES:
            found = lowered if share is None else _with_slower_links(lowered, share)
            in_time, executed = _per_iteration_ms(found, True), _per_iteration_ms(found, False)
            link = "as planned" if share is None else f"{share} F"
            lost = 100 * (executed / in_time - 1)
            print(f"{Path(name).stem:36}{link:>14}{in_time:12.3f}{executed:12.3f}{lost:8.2f}")


def _with_slower_links(lowered: Lowered, share: float) -> Lowered:
    stages = lowered.costs.stages
    mean_us = sum(stage.duration_us[OpKind.F] for stage in stages) / len(stages)
    links = Links(default=Link(latency_us=round(share * mean_us)))
    return lower(lowered.schedule, lowered.costs.replace(links=links))


def _per_iteration_ms(lowered: Lowered, in_time: bool) -> float:
    ends_us = iteration_ends_us(lowered, _ITERATIONS, overlap=in_time)
    return (ends_us[-1] - ends_us[_FIRST]) / (_ITERATIONS - 1 - _FIRST) / 1000


if __name__ == "__main__":
    main()
