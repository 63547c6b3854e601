"""Published schedules on the problems' costs, with which results are compared."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from synth.costs.costs import Costs
from synth.families import generate, generate_for
from synth.objective import Objective
from synth.profile.links import Link, Links
from synth.schedule.lowering.lower import lower
from synth.schedule.model import Schedule
from synth.schedule.rank_memory import peak_bytes
from synth.schedule.verify import verify
from synth.solver.improve.published import with_mean_times
from synth.solver.problem import Problem


class Baseline(NamedTuple):
    """The value of a published schedule; `fits` is True if it keeps the problem's caps."""

    name: str
    value_us: int
    fits: bool

    def __str__(self) -> str:
        """For a table: its value, in brackets if it does not fit."""
        return str(self.value_us) if self.fits else f"({self.value_us})"


def published(problem: Problem) -> Iterator[Baseline]:
    """Yield all families on the problem's placement that neither recompute nor offload."""
    made = generate_for(
        problem.placement, problem.num_micro_batches, problem.costs, problem.caps_bytes
    )
    for schedule in (schedule for _, schedule in made if schedule.keeps_saved):
        yield baseline(schedule, problem.costs, problem.objective, problem.caps_bytes)


def baseline(
    schedule: Schedule, costs: Costs, objective: Objective, caps_bytes: tuple[int, ...] | None
) -> Baseline:
    """A schedule's exact value and peaks, with its own buffering."""
    lowered, timeline = verify(schedule, costs)
    caps = caps_bytes or (None,) * schedule.num_ranks
    peaks = zip(peak_bytes(lowered), caps, strict=True)
    fits = all(cap is None or peak <= cap for peak, cap in peaks)
    return Baseline(schedule.name, objective.value_us(timeline), fits)


def best_fitting(baselines: Iterable[Baseline]) -> Baseline | None:
    """The fastest that fits, if any does."""
    return min((b for b in baselines if b.fits), key=lambda b: b.value_us, default=None)


def peak_of(name: str, num_ranks: int, num_micro_batches: int, costs: Costs) -> int:
    """The most that a rank holds in a family's schedule, in bytes."""
    schedule = generate(name, num_ranks, num_micro_batches, costs=costs)
    return max(peak_bytes(lower(schedule, costs)))


def share_of_1f1b(costs: Costs, num_micro_batches: int, share: float) -> int:
    """Return a cap for all ranks: static bytes plus a share of 1F1B's activations, in bytes.

    There is one stage per rank. The cap is the largest over the ranks; with equal stages it is that
    of rank 0.
    """
    schedule = generate("1f1b", costs.num_stages, num_micro_batches)
    peaks = peak_bytes(lower(schedule, costs))
    statics = [stage.static_bytes for stage in costs.stages]
    return max(s + int(share * (p - s)) for p, s in zip(peaks, statics, strict=True))


def averaged(costs: Costs) -> Costs:
    """Every stage with the mean times of all, every link with the mean time of a transfer."""
    lags = [costs.boundary_us(s, s, s + 1) for s in range(costs.num_stages - 1)]
    links = Links(default=Link(latency_us=round(sum(lags) / max(1, len(lags)))))
    return with_mean_times(costs).replace(links=links)
