"""What any run of a profile's layers costs as one stage, looked up instead of added up again."""

from itertools import accumulate, pairwise

from synth.costs import Costs, StageCosts, cut
from synth.kinds import OpKind
from synth.profile import Profile
from synth.solve.feasible import needed_bytes
from synth.solve.problem import Problem

_WORK = (OpKind.F, OpKind.B, OpKind.W)

# The profiles of the layers, of the one before them and of the one behind them, "" for none.
_Content = tuple[tuple[str, ...], str, str]


class StageTable:
    """Stages by their first layer and their end; runs of equal layers are added up once."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.num_layers = len(profile.layers)
        self._names = [layer.profile for layer in profile.layers]
        self._stages: dict[_Content, StageCosts] = {}
        self._needs: dict[_Content, int] = {}
        self._needs_of_runs: dict[tuple[int, int], int] = {}
        self._work = [self._work_from(first) for first in range(self.num_layers)]
        self._rebuild = [self._rebuild_from(first) for first in range(self.num_layers)]

    def work_us(self, first: int, end: int, *, recompute: bool = False) -> int:
        """F + B + W of one micro-batch, and R where there is one."""
        rebuilt_us = self._rebuild[first][end - first - 1] if recompute else 0
        return self._work[first][end - first - 1] + rebuilt_us

    def need_bytes(self, first: int, end: int) -> int:
        """The least memory of a rank that holds these layers and no others."""
        if (first, end) not in self._needs_of_runs:
            content = self._content(first, end)
            if content not in self._needs:
                stage, costs = self._in_context(first, end)
                self._needs[content] = needed_bytes(Problem.linear(costs, 1))[stage]
            self._needs_of_runs[first, end] = self._needs[content]
        return self._needs_of_runs[first, end]

    def costs(self, edges: tuple[int, ...]) -> Costs:
        """All stages of a partition, given by where each stage begins, and the last one's end."""
        stages = tuple(self.stage(first, end) for first, end in pairwise(edges))
        return Costs(stages=stages, links=self.profile.links)

    def stage(self, first: int, end: int) -> StageCosts:
        """The costs of layers first … end − 1."""
        content = self._content(first, end)
        if content not in self._stages:
            stage, costs = self._in_context(first, end)
            self._stages[content] = costs.stages[stage]
        return self._stages[content]

    def _work_from(self, first: int) -> list[int]:
        """The work of the runs that begin at a layer, shortest first."""
        sums = dict.fromkeys(_WORK, 0.0)
        works = []
        for index in range(first, self.num_layers):
            times = self.profile.layer_profile(index).time_us
            for kind in _WORK:
                sums[kind] += times[kind].median_us
            works.append(sum(map(round, sums.values())))
        return works

    def _rebuild_from(self, first: int) -> list[int]:
        """R of the runs that begin at a layer, shortest first."""
        layers = map(self.profile.layer_profile, range(first, self.num_layers))
        return [round(us) for us in accumulate(layer.recompute_us for layer in layers)]

    def _content(self, first: int, end: int) -> _Content:
        before = self._names[first - 1] if first else ""
        after = self._names[end] if end < self.num_layers else ""
        return tuple(self._names[first:end]), before, after

    def _in_context(self, first: int, end: int) -> tuple[int, Costs]:
        """The stage's number, and its costs between its neighbouring layers: nothing else counts.

        What a layer costs does not depend on its own neighbours' neighbours.
        """
        begin, stop = max(0, first - 1), min(self.num_layers, end + 1)
        part = self.profile.model_copy(update={"layers": self.profile.layers[begin:stop]})
        sizes = [size for size in (first - begin, end - first, stop - end) if size]
        return first - begin, cut(part, sizes)
