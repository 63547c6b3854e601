"""Cutting a model's layers into stages so that the slowest stage is as fast as possible."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from synth.costs import cut
from synth.errors import SynthError
from synth.profile import Profile
from synth.solve.feasible import needed_bytes
from synth.solve.problem import Problem


class _Stage(NamedTuple):
    """A run of layers as one stage: its work, and the least memory of its rank."""

    work_us: int
    need_bytes: int


class _Score(NamedTuple):
    """What a partition is judged by, smaller first; squares break ties towards even stages."""

    largest_us: int
    sum_of_squares: int

    def plus(self, work_us: int) -> "_Score":
        """The score with one more stage."""
        return _Score(max(self.largest_us, work_us), self.sum_of_squares + work_us**2)


_Stages = dict[tuple[int, int], _Stage]
_Partial = tuple[_Score, tuple[int, ...]]


def balance(
    profile: Profile, num_stages: int, caps_bytes: Sequence[int] | None = None
) -> tuple[int, ...]:
    """Choose how many layers each stage gets: exact dynamic programming over all cuts.

    Of the partitions in which every stage can run one micro-batch under its rank's cap, the one
    with the least largest work (F + B + W), then the least sum of squares of the work. Where no
    partition keeps the caps, the one that fits under the smallest limit for all ranks alike.

    Args:
        caps_bytes: one for each stage, stage k on rank k; none: memory does not matter.

    Raises:
        SynthError: fewer layers than stages, or no stage.
    """
    num_layers = len(profile.layers)
    if not 1 <= num_stages <= num_layers:
        raise SynthError(
            f"{num_stages} stages asked for, the profile has {num_layers} layers; every stage "
            f"needs one layer at least: use 1 to {num_layers} ranks, or profile a deeper model"
        )
    stages = _all_stages(profile)
    caps: list[int | None] = [None] * num_stages if caps_bytes is None else [*caps_bytes]
    fitting = _most_even(stages, caps, num_layers)
    if fitting is None:
        limit = _smallest_limit_bytes(stages, num_stages, num_layers)
        fitting = _most_even(stages, [limit] * num_stages, num_layers)
    assert fitting is not None
    return fitting


def _all_stages(profile: Profile) -> _Stages:
    """Every run of layers as one stage, by its first layer and its end."""
    num_layers = len(profile.layers)
    stages = {}
    for first in range(num_layers):
        for end in range(first + 1, num_layers + 1):
            sizes = [size for size in (first, end - first, num_layers - end) if size]
            costs = cut(profile, sizes)
            stage = 1 if first else 0
            need = needed_bytes(Problem.linear(costs, 1))[stage]
            stages[first, end] = _Stage(costs.stages[stage].work_us, need)
    return stages


def _most_even(
    stages: _Stages, caps_bytes: Sequence[int | None], num_layers: int
) -> tuple[int, ...] | None:
    """The best partition that keeps the caps, if there is one."""
    # best[end]: the partitions of the layers before `end` that may still turn out best.
    best: list[list[_Partial]] = [[] for _ in range(num_layers + 1)]
    best[0] = [(_Score(0, 0), ())]
    for cap in caps_bytes:
        fitting = {run: s for run, s in stages.items() if cap is None or s.need_bytes <= cap}
        best = [_pareto(_extended(best, fitting, end)) for end in range(num_layers + 1)]
    return min(best[num_layers])[1] if best[num_layers] else None


def _smallest_limit_bytes(stages: _Stages, num_stages: int, num_layers: int) -> int:
    """The least over all partitions of the most that a stage needs."""
    never = sum(stage.need_bytes for stage in stages.values()) + 1
    least = [0] + [never] * num_layers
    for _ in range(num_stages):
        least = [
            min((max(least[i], stages[i, end].need_bytes) for i in range(end)), default=never)
            for end in range(num_layers + 1)
        ]
    return least[num_layers]


def _extended(best: list[list[_Partial]], stages: _Stages, end: int) -> Iterator[_Partial]:
    """Every kept partition of fewer layers, with one more stage up to `end`."""
    for first in range(end):
        if (first, end) in stages:
            work_us = stages[first, end].work_us
            for score, sizes in best[first]:
                yield score.plus(work_us), (*sizes, end - first)


def _pareto(partials: Iterator[_Partial]) -> list[_Partial]:
    """Drop what another one beats in every respect: a worse maximum may hide behind a later one."""
    kept: list[_Partial] = []
    for partial in sorted(partials):
        if not any(all(a <= b for a, b in zip(k[0], partial[0], strict=True)) for k in kept):
            kept.append(partial)
    return kept
