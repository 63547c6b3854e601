"""Weights that do not stay: the ranks that keep each stage, and the way to the ranks that use it.

Without a `WeightFlow` every rank keeps the parameters, gradients and optimizer state of each stage
copy that it holds. With one, each stage has a *home*: one rank, or several that keep an equal share
each (Rajbhandari et al. 2020, "ZeRO", arXiv 1910.02054). Homes hold a copy of the stage and run its
STEP.

    system                       sharded     weights   gradients
    ZeRO-1                       OPTIMIZER   gather    scatter
    ZeRO-2                       GRADIENTS   gather    scatter
    ZeRO-3, FSDP                 WEIGHTS     gather    scatter
    WeiPipe (PPoPP 2025)         WEIGHTS     chain     chain
    weights sent from one home   WEIGHTS     star      chain
    TawPipe (arXiv 2511.09741)   WEIGHTS     tree      tree
    Mobius (ASPLOS 2023)         WEIGHTS     host      host

A visit of a stage's weights begins with UNSHARD and ends with RESHARD or, without one, with the
last op that reads them. Ops at a stage's only home read what is kept there, unless they stand in a
visit. Rank memory follows from the order of these ops alone, as everything else does.
"""

from dataclasses import dataclass
from enum import StrEnum

from synth.schedule.error import ScheduleError


class Route(StrEnum):
    """The way of weights from their homes to a visit, or of gradients to their homes."""

    STAR = "star"
    """From the home to each visit."""
    CHAIN = "chain"
    """From visit to visit, or from contribution to contribution, in the order of micro-batches.

    The home sends weights to the first visit, and to one whose rank has the visit before it too."""
    TREE = "tree"
    """From the home to its node and once to each other node, and on inside it; gradients back."""
    HOST = "host"
    """Between the home's host memory and the home: it keeps all state there, and none itself."""
    GATHER = "gather"
    """A collective among the homes: all-gather of weights, reduce-scatter of gradients."""


class Sharded(StrEnum):
    """The state that only homes keep, each word with those before it: ZeRO's stages 1, 2 and 3."""

    OPTIMIZER = "optimizer"
    GRADIENTS = "gradients"
    WEIGHTS = "weights"


@dataclass(frozen=True)
class WeightFlow:
    """The homes of all stages, and the routes from and to them.

    Attributes:
        homes: by stage the ranks that keep an equal share each, ascending.
        sharded: what ranks keep only of stages whose home they are.
        gradients: the route of gradients; `GATHER` stands for the reduce-scatter, which is its
            reverse.
        ranks_per_node: the number of consecutive ranks that a node has, for `TREE`; else None.
    """

    homes: tuple[tuple[int, ...], ...]
    sharded: Sharded = Sharded.WEIGHTS
    weights: Route = Route.GATHER
    gradients: Route = Route.GATHER
    ranks_per_node: int | None = None

    def __post_init__(self) -> None:
        """Take plain words for the levels and the routes, too.

        Raises:
            ScheduleError: there is no such word.
        """
        for name, known in (("sharded", Sharded), ("weights", Route), ("gradients", Route)):
            given = getattr(self, name)
            if given not in list(known):
                words = ", ".join(known)
                raise ScheduleError(f"{name} is {given!r}; it is one of {words}")
            object.__setattr__(self, name, known(given))

    @property
    def node_size(self) -> int:
        """The number of ranks of a node.

        Raises:
            ScheduleError: it is not given.
        """
        if self.ranks_per_node is None:
            raise ScheduleError(
                "weights go by a tree, and the number of ranks of a node is not given; give "
                "ranks_per_node"
            )
        return self.ranks_per_node

    def is_home(self, stage: int, rank: int) -> bool:
        """True if a rank keeps the stage, or a share of it."""
        return rank in self.homes[stage]

    def keeps_all(self, stage: int, rank: int) -> bool:
        """True if the whole stage is in a rank's own memory, not in its host's."""
        return self.weights != Route.HOST and self.homes[stage] == (rank,)
