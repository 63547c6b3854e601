"""Costs of stages: microseconds and bytes of every op, and the times of transfers between ranks."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Self

import numpy as np
import numpy.typing as npt
from pydantic import model_validator

from synth.costs.stage_costs import StageCosts
from synth.costs.stage_ties import StageTie
from synth.errors import SynthError
from synth.op_kinds import OpKind
from synth.profile.links import Link, Links
from synth.records.record import BriefRecord
from synth.units import MOST_SUMMABLE

IntArray = npt.NDArray[np.int64]

# In the place of a rank: the memory of the host that a rank runs on.
HOST = -1


@dataclass(frozen=True, eq=False)
class CostTable:
    """All stages, with costs so small that their sums are exact.

    Instances are compared by identity, so that results derived from them can be cached.
    """

    stages: tuple[StageCosts, ...]

    def __post_init__(self) -> None:
        for number, stage in enumerate(self.stages):
            early = stage.early_gradient_bytes
            kept = (stage.saved_bytes, stage.saved_w_bytes, stage.replay_bytes, early)
            rises = (*stage.rise_bytes.values(), stage.light_rise)
            whole = (stage.static_bytes, stage.gradient_bytes, stage.parameter_bytes)
            passed = (stage.output_bytes, stage.returned_bytes)
            most = max(*stage.duration_us.values(), stage.reduce_us, *rises, *kept, *whole, *passed)
            if most > MOST_SUMMABLE:
                raise SynthError(
                    f"stage {number} costs up to {most} (µs or bytes); sums are exact up to "
                    f"{MOST_SUMMABLE} each: is a unit wrong in the profile?"
                )


class Costs(BriefRecord):
    """All stages in forward order, the links between ranks, and what stages share.

    Each stage counts all its parameters. A rank that holds several stages of a tie has the tied
    parameters, their gradient and their optimizer state once, and updates them once: `static_bytes`
    and `step_us` are what it has and does. With weight passing, and where weights have versions,
    each stage has parameters of its own (`untied`).
    """

    LEFT_OUT: ClassVar[tuple[str, ...]] = ("ties",)

    stages: tuple[StageCosts, ...]
    links: Links = Links()
    ties: tuple[StageTie, ...] = ()

    @model_validator(mode="after")
    def _ties_of_stages(self) -> Self:
        for tie in self.ties:
            if list(tie.stages) != sorted(set(tie.stages)) or tie.stages[-1] >= len(self.stages):
                raise ValueError(
                    f"a tie names the stages {', '.join(map(str, tie.stages))} of "
                    f"{len(self.stages)}; name each once, in forward order"
                )
            for stage in tie.stages:
                if tie.static_bytes > self.stages[stage].static_bytes:
                    raise ValueError(
                        f"stage {stage} has {self.stages[stage].static_bytes} static bytes, a tie "
                        f"of it {tie.static_bytes}; they are a part of the stage's"
                    )
        return self

    @property
    def num_stages(self) -> int:
        """Number of stages."""
        return len(self.stages)

    def untied(self) -> Self:
        """The costs where each stage of a rank has parameters of its own."""
        return self.replace(ties=()) if self.ties else self

    def static_bytes(self, held: Collection[int]) -> int:
        """The parameters, gradients and optimizer state of a rank, by the stages that it holds.

        A stage that is listed twice counts twice.
        """
        whole = sum(self.stages[stage].static_bytes for stage in held)
        return whole - sum(tie.repeated_bytes(held) for tie in self.ties)

    def step_us(self, stage: int, held: Collection[int]) -> int:
        """The duration of a stage's STEP on a rank that holds these stages.

        The first of them updates what they share.
        """
        done = (tie.step_us for tie in self.ties if tie.is_updated_before(stage, held))
        return max(0, self.stages[stage].duration_us[OpKind.STEP] - sum(done))

    @cached_property
    def _leaving_early_gradients(self) -> "Costs":
        return self.replace(stages=tuple(stage.with_early_gradients() for stage in self.stages))

    def with_early_gradients(self) -> "Costs":
        """The costs where B leaves the gradients that it computes itself for W.

        That is so with weight passing, unless each rank keeps whole gradients: the sum to which
        they belong comes with W.
        """
        if not any(stage.early_gradient_bytes for stage in self.stages):
            return self  # and is not cached: it would be compared with itself without end
        return self._leaving_early_gradients

    def without_reductions(self) -> Self:
        """The costs where the devices of a rank reduce no gradients."""
        return self.replace(
            stages=tuple(stage.replace(reduce_us=0) for stage in self.stages),
            ties=tuple(tie.replace(reduce_us=0) for tie in self.ties),
        )

    def boundary_us(self, stage: int, source: int, target: int) -> int:
        """Time to move stage `stage`'s output from rank to rank.

        Raises:
            SynthError: it takes too long to be added up exactly.
        """
        return self.transfer_us(self.stages[stage].output_bytes, source, target)

    def return_us(self, stage: int, source: int, target: int) -> int:
        """Time to move the gradient of stage `stage`'s output back from rank to rank.

        Raises:
            SynthError: it takes too long to be added up exactly.
        """
        return self.transfer_us(self.stages[stage].returned_bytes, source, target)

    def transfer_us(self, num_bytes: int, source: int, target: int) -> int:
        """The time to move `num_bytes` from rank to rank, or to or from `HOST`.

        Raises:
            SynthError: the time is too long to be summed exactly; there is no link to the host.
        """
        link = self.links.between(source, target)
        if HOST in (source, target):
            if self.links.host is None:
                raise SynthError(
                    "the schedule moves values to the host's memory, and the profile has no link "
                    'to it; add `"host": {"latency_us": …, "bandwidth_bytes_per_s": …}` to its '
                    "links, or take a schedule without offloading"
                )
            link = self.links.host
        return _summable_us(link.transfer_us(num_bytes), num_bytes)

    def reduction_us(
        self,
        stage: int,
        ranks: Sequence[int],
        *,
        is_alone: bool = False,
        held: Collection[int] = (),
    ) -> int:
        """Time to add up the gradients of a stage's copies on different ranks, in rank order.

        First each rank adds up those of its group of devices (`StageCosts.reduce_us`); those of
        parameters that stages of the rank share are added up with the first of them. The first
        stage does so in buckets if it is the only one of its rank: nothing else hides its
        reduction. It is so in Megatron-LM, whose other ranks have one bucket, and whose interleaved
        schedule starts each reduction behind a stage's last backward. Then follows a ring
        all-reduce (Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms for
        clusters of workstations"): a reduce-scatter and an all-gather, one after the other.

        Args:
            is_alone: it is the only stage of its only rank.
            held: the stages that each of these ranks holds.

        Raises:
            SynthError: it takes too long to be added up exactly.
        """
        own = self.stages[stage]
        done = (tie.reduce_us for tie in self.ties if tie.is_updated_before(stage, held))
        within_us = max(0, own.reduction_us(in_buckets=is_alone and stage == 0) - sum(done))
        return within_us + self._ring_us(own.gradient_bytes, ranks, 2 * (len(ranks) - 1))

    def gather_us(self, stage: int, ranks: Sequence[int]) -> int:
        """Time to all-gather a stage's parameters, of which each rank keeps an equal share.

        Raises:
            SynthError: it takes too long to be added up exactly.
        """
        return self._ring_us(self.stages[stage].parameter_bytes, ranks, len(ranks) - 1)

    def scatter_us(self, stage: int, ranks: Sequence[int]) -> int:
        """Time to reduce-scatter a stage's gradients, of which each rank keeps an equal share.

        Raises:
            SynthError: it takes too long to be added up exactly.
        """
        return self._ring_us(self.stages[stage].gradient_bytes, ranks, len(ranks) - 1)

    def _ring_us(self, num_bytes: int, ranks: Sequence[int], num_rounds: int) -> int:
        """Time of a ring collective: in each round every rank sends an n-th to the next one.

        The slowest link of the ring sets the pace.
        """
        if len(ranks) < 2:
            return 0
        ring = zip(ranks, [*ranks[1:], ranks[0]], strict=True)
        pace_us = max(
            _unrounded_us(self.links.between(*ends), num_bytes / len(ranks)) for ends in ring
        )
        return _summable_us(round(num_rounds * pace_us), num_bytes)

    # The underscore keeps the cached value out of `dict(self)`, that is, out of `replace`.
    @cached_property
    def _table(self) -> CostTable:
        return CostTable(self.stages)

    def table(self) -> CostTable:
        """The stages, checked.

        Raises:
            SynthError: a cost is too large to be added up exactly.
        """
        return self._table


def _summable_us(time_us: int, num_bytes: int) -> int:
    """The time, if sums of it are exact."""
    if time_us > MOST_SUMMABLE:
        raise SynthError(
            f"moving {num_bytes} bytes takes {time_us} µs; sums are exact up to {MOST_SUMMABLE} "
            f"each: is the link's bandwidth in bytes per second?"
        )
    return time_us


def _unrounded_us(link: Link, num_bytes: float) -> float:
    """Time of one round of many, which are rounded together."""
    bandwidth = link.bandwidth_bytes_per_s
    return link.latency_us + (num_bytes / bandwidth * 1e6 if bandwidth else 0.0)


def uniform_costs(
    num_stages: int,
    *,
    forward_us: int,
    backward_input_us: int,
    backward_weight_us: int,
    links: Links | None = None,
    saved_bytes: int = 0,
    saved_w_bytes: int = 0,
    output_bytes: int = 0,
    gradient_bytes: int = 0,
    parameter_bytes: int = 0,
    static_bytes: int = 0,
) -> Costs:
    """Equal stages, as the papers assume them; BW takes B + W, no op needs workspace."""
    durations = {
        OpKind.F: forward_us,
        OpKind.B: backward_input_us,
        OpKind.W: backward_weight_us,
        OpKind.BW: backward_input_us + backward_weight_us,
        OpKind.STEP: 0,
    }
    stages = []
    for stage in range(num_stages):
        activation = output_bytes if stage < num_stages - 1 else 0
        gradient = output_bytes if stage > 0 else 0
        rises = {
            OpKind.F: saved_bytes + activation,
            OpKind.B: max(0, saved_w_bytes - saved_bytes) + gradient,
            OpKind.W: 0,
            OpKind.BW: gradient,
            OpKind.STEP: 0,
        }
        stages.append(
            StageCosts(
                duration_us=durations,
                static_bytes=static_bytes,
                output_bytes=activation,
                saved_bytes=saved_bytes,
                saved_w_bytes=saved_w_bytes,
                rise_bytes=rises,
                input_until=OpKind.F,
                gradient_bytes=gradient_bytes,
                parameter_bytes=parameter_bytes,
                light_rise_bytes=activation,
            )
        )
    return Costs(stages=tuple(stages), links=links or Links())
