"""The rules by which frameworks choose the layers to recompute, and what each framework offers.

A rule is told in one or two options and holds for all ranks, so it is no free choice of layers.
Megatron-LM and torchtitan recompute decoder layers only, never the embedding or the head.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate
from typing import ClassVar, NamedTuple

from synth.costs.recomputation import FULL, Recomputation
from synth.profile.model_parts import ModelPart
from synth.schedule.model import Placement

# The parts of a model by its layers; None where a layer is no known part.
Parts = Sequence[ModelPart | None]

# Those that no framework recomputes.
ENDS = frozenset((ModelPart.EMBEDDING, ModelPart.HEAD))


class RecomputationKind(Enum):
    """The kinds of `RecomputationRule`."""

    ALL = "all"
    OF_MODEL = "of the model"
    OF_RANK = "of a rank"
    OF_STAGE = "of a stage"


class RecomputationRule(NamedTuple):
    """A way in which frameworks choose the layers to recompute.

    - `ALL`: every layer: full recomputation, `--recompute-method uniform` with one layer
    - `OF_MODEL`: one layer of n, counted over the model
    - `OF_RANK`: every n-th layer of a rank, counted through its stages, as torchtitan's
      `selective_ac_option` does
    - `OF_STAGE`: the first n layers of each stage, Megatron-LM's `--recompute-method block`

    Layers of the parts in `skips` are neither recomputed nor counted. `policy` is what B computes
    again of each.
    """

    kind: RecomputationKind
    number: int = 1
    skips: frozenset[ModelPart] = frozenset()
    policy: str = FULL

    @property
    def words(self) -> str:
        """The layers in words."""
        n = self.number
        first = f"{n} layers" if n > 1 else "layer"
        return {
            RecomputationKind.ALL: "all layers" if self.policy == FULL else f"all {self.policy}",
            RecomputationKind.OF_MODEL: f"one layer of {n}",
            RecomputationKind.OF_RANK: f"every {_ordinal(n)} layer of a rank",
            RecomputationKind.OF_STAGE: f"the first {first} of each stage",
        }[self.kind]

    def layers(self, sizes: Sequence[int], where: Placement, parts: Parts) -> tuple[int, ...]:
        """Return the layers of a partition, by their places in the model.

        Args:
            parts: of the model's layers.
        """
        runs = _runs(sizes, [part in self.skips for part in parts])
        if self.kind == RecomputationKind.OF_STAGE:
            return tuple(at for run in runs for at in run[: self.number])
        if self.kind == RecomputationKind.OF_RANK:
            found: set[int] = set()
            for held in where.held:
                own = [at for stage in sorted({stage for stage, _ in held}) for at in runs[stage]]
                found.update(own[self.number - 1 :: self.number])
            return tuple(sorted(found))
        return tuple(at for run in runs for at in run)[:: self.number]


@dataclass(frozen=True)
class AsNeeded:
    """Layers that were chosen for each rank by itself, where its limit needs it.

    `chosen` are their places, or their policies by place. No framework has this as a rule.
    """

    chosen: tuple[int, ...] | Recomputation

    policy: ClassVar[str] = FULL
    words: ClassVar[str] = "as few as each rank needs"

    def layers(
        self, sizes: Sequence[int], where: Placement, parts: Parts
    ) -> tuple[int, ...] | Recomputation:
        """Return the layers, which are the same on any partition."""
        return self.chosen


class RecomputationMenu(NamedTuple):
    """The rules that a framework offers: their kinds, each with the parts that it skips.

    `policies` are those under which it recomputes a part of every layer, as the first rule, `ALL`,
    finds them.
    """

    kinds: tuple[tuple[RecomputationKind, frozenset[ModelPart]], ...]
    policies: tuple[str, ...] = ()

    def rules(self, sizes: Sequence[int], where: Placement) -> Iterator[RecomputationRule]:
        """Yield the rules that differ on a partition, without regard to what they skip."""
        most = {
            RecomputationKind.ALL: 1,
            RecomputationKind.OF_MODEL: sum(sizes),
            RecomputationKind.OF_RANK: max(
                sum(sizes[stage] for stage in {stage for stage, _ in held}) for held in where.held
            ),
            RecomputationKind.OF_STAGE: max(sizes),
        }
        for kind, skips in self.kinds:
            first = 1 if kind in (RecomputationKind.ALL, RecomputationKind.OF_STAGE) else 2
            for number in range(first, most[kind] + 1):
                yield RecomputationRule(kind, number, skips)
        kind, skips = self.kinds[0]
        for policy in self.policies:
            yield RecomputationRule(kind, skips=skips, policy=policy)

    def every_layer(self, sizes: Sequence[int], where: Placement, parts: Parts) -> tuple[int, ...]:
        """Return the layers that the framework recomputes if it recomputes all that it can."""
        kind, skips = self.kinds[0]
        return RecomputationRule(kind, skips=skips).layers(sizes, where, parts)

    def choices(
        self, sizes: Sequence[int], where: Placement, parts: Parts
    ) -> dict[tuple[int, ...], RecomputationRule | None]:
        """Return the first rule for each choice of whole layers, and None for that of none."""
        found: dict[tuple[int, ...], RecomputationRule | None] = {(): None}
        for rule in self.rules(sizes, where):
            if rule.policy == FULL:
                found.setdefault(rule.layers(sizes, where, parts), rule)
        return found


# `activation_checkpoint.mode = "full"`, or "selective" with a number or "op" as
# `selective_ac_option`.
TORCHTITAN = RecomputationMenu(
    ((RecomputationKind.ALL, ENDS), (RecomputationKind.OF_RANK, ENDS)), policies=("ops",)
)

# `--recompute-granularity full` with the method uniform and one layer, or with the method block,
# which recomputes no layers of multi-token prediction. Uniform with several layers recomputes them
# together, which a profile of single layers does not describe. `--recompute-granularity selective`
# with the module core_attn recomputes the attention core of all layers.
MEGATRON = RecomputationMenu(
    ((RecomputationKind.ALL, ENDS), (RecomputationKind.OF_STAGE, ENDS | {ModelPart.MTP})),
    policies=("selective",),
)


def _runs(sizes: Sequence[int], is_skipped: Sequence[bool]) -> list[list[int]]:
    """Return the layers of each stage that are counted."""
    ends = accumulate(sizes)
    return [
        [at for at in range(end - size, end) if not is_skipped[at]]
        for size, end in zip(sizes, ends, strict=True)
    ]


def _ordinal(number: int) -> str:
    return "2nd" if number == 2 else "3rd" if number == 3 else f"{number}th"
