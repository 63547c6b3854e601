"""Cutting a model's layers into stages so that the slowest stage is as fast as possible."""

from collections.abc import Iterator
from typing import NamedTuple

from synth.costs import cut
from synth.errors import SynthError
from synth.profile import Profile
from synth.solve.feasible import one_micro_batch_bytes
from synth.solve.problem import Problem
from synth.solve.ranks import certain


class _Score(NamedTuple):
    """What a partition is judged by, smaller first; squares break ties towards even stages."""

    stages_over_cap: int
    largest_us: int
    sum_of_squares: int

    def plus(self, stage: "_Score") -> "_Score":
        """The score with one more stage."""
        return _Score(
            self.stages_over_cap + stage.stages_over_cap,
            max(self.largest_us, stage.largest_us),
            self.sum_of_squares + stage.sum_of_squares,
        )


_Partial = tuple[_Score, tuple[int, ...]]


def balance(profile: Profile, num_stages: int, cap_bytes: int | None = None) -> tuple[int, ...]:
    """Choose how many layers each stage gets: exact dynamic programming over all cuts.

    Minimises the number of stages that cannot hold even one micro-batch under the cap (0 where that
    is possible), then the largest work (F + B + W) of a stage, then the sum of squares of the work.

    Raises:
        SynthError: fewer layers than stages, or no stage.
    """
    num_layers = len(profile.layers)
    if not 1 <= num_stages <= num_layers:
        raise SynthError(
            f"{num_stages} stages asked for, the profile has {num_layers} layers; every stage "
            f"needs one layer at least: use 1 to {num_layers} ranks, or profile a deeper model"
        )
    scores = _run_scores(profile, cap_bytes)
    # best[end]: the partitions of the layers before `end` that may still turn out best.
    best: list[list[_Partial]] = [[] for _ in range(num_layers + 1)]
    best[0] = [(_Score(0, 0, 0), ())]
    for _ in range(num_stages):
        best = [_pareto(_extended(best, scores, end)) for end in range(num_layers + 1)]
    return min(best[num_layers])[1]


def _run_scores(profile: Profile, cap_bytes: int | None) -> dict[tuple[int, int], _Score]:
    """The score of every run of layers as one stage, by its first layer and its end."""
    num_layers = len(profile.layers)
    scores = {}
    for first in range(num_layers):
        for end in range(first + 1, num_layers + 1):
            sizes = [size for size in (first, end - first, num_layers - end) if size]
            costs = cut(profile, sizes)
            stage = 1 if first else 0
            over = False
            if cap_bytes is not None:
                need, _ = one_micro_batch_bytes(certain(Problem.linear(costs, 1))[stage])
                over = costs.stages[stage].static_bytes + need > cap_bytes
            work_us = costs.stages[stage].work_us
            scores[first, end] = _Score(int(over), work_us, work_us**2)
    return scores


def _extended(
    best: list[list[_Partial]], scores: dict[tuple[int, int], _Score], end: int
) -> Iterator[_Partial]:
    """Every kept partition of fewer layers, with one more stage up to `end`."""
    for first in range(end):
        for score, sizes in best[first]:
            yield score.plus(scores[first, end]), (*sizes, end - first)


def _pareto(partials: Iterator[_Partial]) -> list[_Partial]:
    """Drop what another one beats in every respect: a worse maximum may hide behind a later one."""
    kept: list[_Partial] = []
    for partial in sorted(partials):
        if not any(all(a <= b for a, b in zip(k[0], partial[0], strict=True)) for k in kept):
            kept.append(partial)
    return kept
