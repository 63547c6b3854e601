"""PipeDream's planner: layers to stages, and ranks to stages, by dynamic programming.

Narayanan et al. 2019, "PipeDream: Generalized Pipeline Parallelism for DNN Training", SOSP 2019,
section 3.1; arXiv 1806.03377, section 3.2. With T the time of F and B of a run of layers, w its
weights, a the output of a layer, and B the bandwidth between the m components of a level of the
machines, the time per micro-batch of layers i to j on m components is

    stage(i, j, m) = max(T(i, j), 4 (m − 1) w(i, j) / (m B)) / m
    A(i, j, m)     = min(stage(i, j, m),
                         min over s, r of max(A(i, s, m − r), 2 a(s) / B, stage(s + 1, j, r)))

The term of w is the synchronization of m copies of the weights, and that of a the activation and
its gradient. T on the lowest level is that of one rank; on the others it is A of the level below on
all its components. The sum 4 (m − 1) w / (m B) is that of arXiv 1806.03377 and of the released
program, which adds it to T; the papers take the larger of both, since they overlap.

A stage of a memory limit must hold K versions of its weights and K times its activations, beside
gradients and optimizer state, where K is the number of micro-batches that a rank of it has in
flight: the ranks from this stage on over those of the stage, rounded up. The released program
counts one micro-batch less, and weights and activations only. On several levels it counts the
components of each by themselves, which is not what a rank holds; here a limit is for one level.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from synth.errors import SynthError
from synth.op_kinds import OpKind
from synth.plan.partition.stage_cost_table import StageCostTable
from synth.plan.planners.machine_levels import MachineLevel, machine_levels
from synth.plan.planners.replicated_pipeline import (
    Bottleneck,
    ReplicatedPipeline,
    ReplicatedStage,
    Term,
)
from synth.profile import Profile
from synth.units import format_bytes

_Array = npt.NDArray[Any]


def pipedream_partition(
    profile: Profile, num_ranks: int, *, memory_bytes: int | None = None
) -> ReplicatedPipeline:
    """Return the stages, and the ranks of each, with the least predicted time per micro-batch.

    All ranks are used. Of equal choices that with the fewest ranks in the last stage is taken, and
    a stage is divided only if that is faster.

    Args:
        profile: the profile of the layers, with the links.
        num_ranks: to be divided among stages.
        memory_bytes: the most that a rank may hold, on links of one bandwidth; None: no limit.

    Raises:
        SynthError: there is no rank, the links are none that the planner knows or have several
            bandwidths under a memory limit, or no choice keeps the limit.
    """
    if num_ranks < 1:
        raise SynthError(f"a pipeline needs at least one rank, given {num_ranks}")
    runs = _Runs.of(profile, has_limit=memory_bytes is not None)
    level: _Level | None = None
    levels = machine_levels(profile.links, num_ranks)
    if memory_bytes is not None and len(levels) > 1:
        raise SynthError(
            f"a memory limit of {format_bytes(memory_bytes)} is given with links of {len(levels)} "
            f"bandwidths, within nodes and between them, and PipeDream's planner counts memory "
            f"with one only; leave out the memory limit, or give all ranks the same §link"
        )
    for number, machines in enumerate(levels, start=1):
        level = _Level(runs, machines, level, memory_bytes, is_highest=number == len(levels))
    assert level is not None
    planned = level.planned(0, runs.num_layers, levels[-1].machines)
    if planned is None:
        assert memory_bytes is not None
        raise SynthError(
            f"no choice of stages and replicas on {num_ranks} ranks fits in "
            f"{format_bytes(memory_bytes)} by PipeDream's count of versions and activations; give "
            f"more memory or more ranks"
        )
    return ReplicatedPipeline(tuple(planned.stages), planned.time_us, planned.bound_by)


class _Planned(NamedTuple):
    """Stages of some layers on ranks counted from 0, and their time per micro-batch."""

    stages: Sequence[ReplicatedStage]
    time_us: float
    bound_by: Bottleneck


class _Runs(NamedTuple):
    """Figures of the layers from `first` to before `end`, [first, end].

    Attributes:
        time_us: F and B of a micro-batch; infinite where there is no layer.
        flight_bytes: what each micro-batch in flight takes: a version of the weights, activations.
        kept_bytes: gradients and optimizer state.
        crossing_bytes: by layer, its output and the gradient of it that comes back.
    """

    time_us: _Array
    weight_bytes: _Array
    flight_bytes: _Array
    kept_bytes: _Array
    crossing_bytes: _Array

    @property
    def num_layers(self) -> int:
        """Number of layers."""
        return len(self.crossing_bytes)

    @classmethod
    def of(cls, profile: Profile, *, has_limit: bool) -> Self:
        """Add up the layers; activations only if there is a memory limit."""
        layers = [profile.layer_profile(i) for i in range(len(profile.layers))]
        # Rounded by kind of op, as the costs of stages are.
        times = [
            _run_sums([layer.time_us[kind].median_us for layer in layers], rounded=True)
            for kind in (OpKind.F, OpKind.BW)
        ]
        weights = _run_sums([layer.parameter_bytes for layer in layers])
        kept = _run_sums([layer.static_bytes - layer.parameter_bytes for layer in layers])
        saved = _saved_bytes(profile) if has_limit else np.zeros_like(weights)
        crossing = np.array([one.output_bytes + one.returned_bytes for one in layers], float)
        is_empty = np.tri(*weights.shape) > 0
        time_us = np.where(is_empty, np.inf, sum(times))
        return cls(time_us, weights, weights + saved, kept, crossing)


def _run_sums(values: Sequence[float], *, rounded: bool = False) -> _Array:
    """Return the sums of all runs, [first, end]; 0 where there is no layer."""
    count = len(values)
    sums = np.zeros((count, count + 1))
    for first in range(count):
        run = list(accumulate(values[first:]))
        sums[first, first + 1 :] = np.rint(run) if rounded else run
    return sums


def _saved_bytes(profile: Profile) -> _Array:
    """Return the activations that F of each run saves, with its input."""
    table, count = StageCostTable(profile), len(profile.layers)
    saved = np.zeros((count, count + 1))
    for first in range(count):
        input_bytes = profile.layer_profile(first - 1).output_bytes if first else 0
        for end in range(first + 1, count + 1):
            saved[first, end] = table.stage(first, end).saved_bytes + input_bytes
    return saved


class _Level:
    """The least times of all runs on each number of components of a level."""

    def __init__(
        self,
        runs: _Runs,
        machines: MachineLevel,
        below: "_Level | None",
        memory_bytes: int | None,
        *,
        is_highest: bool,
    ) -> None:
        self.runs, self.machines, self.below = runs, machines, below
        self.memory_bytes = memory_bytes
        self.inner_us = runs.time_us if below is None else below.best_us[below.machines.machines]
        self.cut_us = runs.crossing_bytes[:-1] / machines.bytes_per_us
        # The whole model is asked for on the highest level, all runs on the others.
        self.firsts = range(1 if is_highest else runs.num_layers)
        self.best_us: dict[int, _Array] = {}
        self.divided: dict[int, _Array] = {}  # the first layer of the last stage, and its machines
        for count in range(1, machines.machines + 1):
            self._solve(count)

    def sync_us(self, replicas: int) -> _Array:
        """The time to synchronize copies of the weights of all runs, [first, end]."""
        moved_bytes = 4 * (replicas - 1) / replicas * self.runs.weight_bytes
        time_us: _Array = moved_bytes / self.machines.bytes_per_us
        return time_us

    def stage_us(self, replicas: int, behind: int) -> _Array:
        """The time per micro-batch of all runs as one stage, [first, end].

        Args:
            replicas: the components of the stage.
            behind: those of the stages after it.
        """
        time_us: _Array = np.maximum(self.inner_us, self.sync_us(replicas)) / replicas
        if self.memory_bytes is None:
            return time_us
        in_flight = -(-(replicas + behind) // replicas)
        need = in_flight * self.runs.flight_bytes + self.runs.kept_bytes
        return np.where(need <= self.memory_bytes, time_us, np.inf)

    def _solve(self, count: int) -> None:
        behind = self.machines.machines - count
        best = self.stage_us(count, behind)
        divided = np.zeros((*best.shape, 2), np.int64)
        # A last stage begins at layer 1, 2, …; a single layer cannot be divided.
        for replicas in range(1, count if self.runs.num_layers > 1 else 1):
            last_us, before_us = self.stage_us(replicas, behind)[1:], self.best_us[count - replicas]
            for first in self.firsts:
                until_us = np.maximum(before_us[first, 1:-1], self.cut_us)
                times = np.maximum(until_us[:, None], last_us)
                begin = times.argmin(axis=0)
                least = times[begin, np.arange(times.shape[1])]
                is_better = least < best[first]
                best[first, is_better] = least[is_better]
                divided[first, is_better, 0] = begin[is_better] + 1
                divided[first, is_better, 1] = replicas
        self.best_us[count], self.divided[count] = best, divided

    def planned(self, first: int, end: int, count: int) -> _Planned | None:
        """The stages of a run on a number of components; None: nothing fits."""
        time_us = float(self.best_us[count][first, end])
        if time_us == np.inf:
            return None
        stages: list[ReplicatedStage] = []
        terms: list[tuple[float, Bottleneck]] = []
        start = 0
        for begin, stop, replicas in reversed(list(self._divided(first, end, count))):
            inner = self._inner(begin, stop)
            stages += _in_turn(inner.stages, start, replicas)
            start += replicas
            sync_us = float(self.sync_us(replicas)[begin, stop])
            terms.append((inner.time_us / replicas, inner.bound_by))
            terms.append((sync_us / replicas, Bottleneck(Term.SYNC, range(begin, stop))))
            if begin > first:
                cut = Bottleneck(Term.TRANSFER, range(begin - 1, begin))
                terms.append((float(self.cut_us[begin - 1]), cut))
        return _Planned(stages, time_us, max(terms, key=lambda term: term[0])[1])

    def _divided(self, first: int, end: int, count: int) -> Iterator[tuple[int, int, int]]:
        """Yield first layer, end and components of each stage, the last one first."""
        while True:
            begin, replicas = self.divided[count][first, end].tolist()
            if not replicas:
                yield first, end, count
                return
            yield begin, end, replicas
            end, count = begin, count - replicas

    def _inner(self, first: int, end: int) -> _Planned:
        """The stages of a run within one component."""
        if self.below is not None:
            found = self.below.planned(first, end, self.below.machines.machines)
            assert found is not None
            return found
        layers = range(first, end)
        time_us = float(self.inner_us[first, end])
        return _Planned([ReplicatedStage(layers, (0,))], time_us, Bottleneck(Term.COMPUTE, layers))


def _in_turn(
    stages: Sequence[ReplicatedStage], start: int, replicas: int
) -> Iterator[ReplicatedStage]:
    """Yield a component's stages on several components, which take micro-batches in turn.

    Among the ranks of a component those micro-batches are dealt out in turn once more.

    Args:
        stages: the stages of one component, whose ranks are counted from 0.
    """
    size = sum(len(stage.ranks) for stage in stages)
    for layers, ranks in stages:
        places = range(replicas * len(ranks))
        yield ReplicatedStage(
            layers, tuple((start + q % replicas) * size + ranks[q // replicas] for q in places)
        )
