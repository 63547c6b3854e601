"""What-ifs of the same order of ops: other links, stages, partitions or recomputed layers.

The order is simulated again on the changed costs, which is exact. A better order may exist there.
F and BW that run at once do so where the changed stages still save time by it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple, TypeVar

from synth.costs.costs import Costs
from synth.costs.partition_costs import partition_costs
from synth.costs.recomputation import FULL, Recomputation
from synth.costs.recomputed_layers import policies_of, recomputing
from synth.plan.explain.what_if import How, WhatIf, compared
from synth.plan.tuning import EXPLAIN
from synth.profile import Profile
from synth.profile.links import Link, Links
from synth.schedule.error import ScheduleError
from synth.schedule.files.plan_file import Plan
from synth.schedule.model import Schedule
from synth.schedule.rank_memory import peak_bytes
from synth.schedule.simulate import Timeline
from synth.schedule.verify import verify
from synth.units import format_bytes

_AnyLink = TypeVar("_AnyLink", bound=Link)


class _Variant(NamedTuple):
    """A partition and its recomputed layers, with the change in words."""

    words: str
    sizes: tuple[int, ...]
    recomputed: Recomputation


class SameOrder:
    """The order of a plan on other costs."""

    def __init__(self, plan: Plan, timeline: Timeline, is_over: Callable[[], bool]) -> None:
        """Simulate nothing yet.

        Args:
            plan: a verified plan.
            timeline: its simulation.
            is_over: True once the time for what-ifs is over.
        """
        self.plan, self.timeline, self.is_over = plan, timeline, is_over
        self.own_us = plan.claim.judged_by.value_us(timeline)

    def of_hardware(self) -> Iterator[WhatIf]:
        """Yield what faster links, no reductions within ranks, and a faster stage give."""
        costs, lowered = self.plan.costs, self.timeline.lowered
        moving = {*range(lowered.first_node[-1], len(lowered.durations_us))}
        if any(lowered.durations_us[one] for one in moving - lowered.reductions_within_ranks):
            twice, free = (_linked(costs.links, speed) for speed in (EXPLAIN.times_as_fast, None))
            yield self._on("every link twice as fast", costs.replace(links=twice))
            yield self._on("transfers that take no time", costs.replace(links=free))
        if lowered.reductions_within_ranks:
            yield self._on("reductions that take no time", costs.without_reductions())
        rank = self.timeline.work_us.index(max(self.timeline.work_us))
        durations_us = {stage: costs.stages[stage].duration_us for stage in self._stages_of(rank)}
        stage = max(durations_us, key=lambda each: sum(durations_us[each].values()))
        faster = costs.stages[stage].at(1 / EXPLAIN.faster_share)
        stages = (*costs.stages[:stage], faster, *costs.stages[stage + 1 :])
        words = f"stage {stage} of rank {rank} 10% faster"
        yield self._on(words, costs.replace(stages=stages))

    def of_layers(self, profile: Profile) -> Iterator[WhatIf]:
        """Yield the best move of a layer, and the best changes of recomputation.

        Args:
            profile: that of the plan, from which its costs are derived.
        """
        recomputed = self.plan.recomputation
        yield self._best("one layer moved", profile, self._moves(recomputed))
        if recomputed:
            fewer = [(layer, recomputed.without(layer)) for layer in recomputed]
            yield self._best("one layer less recomputed", profile, self._distinct(profile, fewer))
        rank = self._fullest_rank()
        if rank is not None:
            more = [
                (layer, Recomputation({**recomputed, layer: policy}))
                for stage in self._stages_of(rank)
                for layer in self.plan.layers_of(stage)
                if layer not in recomputed
                for policy in policies_of(profile, layer)
            ]
            words = f"one layer more of rank {rank} recomputed"
            yield self._best(words, profile, self._distinct(profile, more))

    def _stages_of(self, rank: int) -> list[int]:
        return sorted({stage for stage, _ in self.plan.placed.held[rank]})

    def _fullest_rank(self) -> int | None:
        """Return the rank with the least free memory; None: there is no limit."""
        if self.plan.caps_bytes is None:
            return None
        pairs = zip(self.plan.caps_bytes, self.plan.claim.peak_bytes, strict=True)
        free = [cap - peak for cap, peak in pairs]
        return free.index(min(free))

    def _on(self, change: str, costs: Costs) -> WhatIf:
        timeline = verify(self.schedule_on(costs), costs)[1]
        value_us = self.plan.claim.judged_by.value_us(timeline)
        return compared(change, How.SAME_ORDER, value_us, self.own_us)

    def schedule_on(self, costs: Costs) -> Schedule:
        """Return the plan's order, of which F and BW run at once if both stages hide time."""
        schedule, stages = self.plan.schedule(), costs.stages
        pairs = frozenset(
            op
            for program in schedule.programs
            for op, after in pairwise(program)
            if op in schedule.overlapped
            and stages[op.stage].hidden_us
            and stages[after.stage].hidden_us
        )
        return replace(schedule, overlapped=pairs)

    def _moves(self, recomputed: Recomputation) -> Iterator[_Variant]:
        """Yield the partitions in which one stage boundary is a layer further, either way."""
        sizes = self.plan.partition
        for stage in range(len(sizes) - 1):
            for source, target in ((stage, stage + 1), (stage + 1, stage)):
                if sizes[source] > 1:
                    moved = list(sizes)
                    moved[source] -= 1
                    moved[target] += 1
                    words = f"from stage {source} to {target}"
                    yield _Variant(words, tuple(moved), recomputed)

    def _distinct(
        self, profile: Profile, choices: Sequence[tuple[int, Recomputation]]
    ) -> Iterator[_Variant]:
        """Yield one of the choices of recomputed layers for each stage and kind of layer."""
        stage_of = [s for s, size in enumerate(self.plan.partition) for _ in range(size)]
        seen = set()
        for layer, recomputed in choices:
            policy = recomputed.get(layer, self.plan.recomputation.get(layer, FULL))
            content = stage_of[layer], profile.layers[layer].profile, policy
            if content not in seen:
                seen.add(content)
                name = f"layer {layer}, {self.plan.layers[layer]}"
                name += "" if policy == FULL else f", under {policy}"
                yield _Variant(name, self.plan.partition, recomputed)

    def _best(self, change: str, profile: Profile, variants: Iterator[_Variant]) -> WhatIf:
        """Return the variant of the least value that keeps the memory limits."""
        best: tuple[int, str, int] | None = None
        num_tried = 0
        for variant in variants:
            if self.is_over():
                break
            num_tried += 1
            costs = partition_costs(recomputing(profile, variant.recomputed), variant.sizes)
            costs = costs.replace(links=self.plan.costs.links)
            try:
                lowered, timeline = verify(self.schedule_on(costs), costs, self.plan.caps_bytes)
            except ScheduleError:
                continue
            value_us = self.plan.claim.judged_by.value_us(timeline)
            peak = max(peak_bytes(lowered))
            best = min(best or (value_us, variant.words, peak), (value_us, variant.words, peak))
        if best is None:
            why = "exceeds a memory limit" if num_tried else "there is none in time"
            return WhatIf(change=change, how=How.SAME_ORDER, note=why)
        value_us, words, peak = best
        saved = max(self.plan.claim.peak_bytes) - peak
        memory = f"peak {format_bytes(abs(saved))} {'lower' if saved > 0 else 'higher'}"
        note = f"{words}; {memory}" if saved else words
        return compared(change, How.SAME_ORDER, value_us, self.own_us, note)


def _linked(links: Links, speed: float | None) -> Links:
    """Return links that are faster by a factor; None: they take no time."""

    def faster(link: _AnyLink) -> _AnyLink:
        if speed is None:
            return link.replace(latency_us=0.0, bandwidth_bytes_per_s=None)
        rate = link.bandwidth_bytes_per_s
        return link.replace(
            latency_us=link.latency_us / speed,
            bandwidth_bytes_per_s=None if rate is None else rate * speed,
        )

    return links.replace(
        default=faster(links.default),
        nodes=tuple(map(faster, links.nodes)),
        pairs=tuple(map(faster, links.pairs)),
        host=None if links.host is None else faster(links.host),
    )
