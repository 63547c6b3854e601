"""The parts of a plan file about weights: their homes and routes, their updates and versions."""

from pydantic import Field

from synth.records.field_types import PositiveCount, StrictCount
from synth.records.record import Record
from synth.schedule.weight_flow import Route, Sharded, WeightFlow
from synth.schedule.weight_versions import BackwardReads, ForwardReads, WeightVersions


class Weights(Record):
    """The homes of all stages, and the routes of weights and gradients: a `WeightFlow`."""

    homes: tuple[tuple[StrictCount, ...], ...] = Field(description="[stage] → ranks")
    sharded: Sharded
    route: Route
    gradients: Route
    ranks_per_node: StrictCount | None = Field(
        default=None, gt=0, description="of nodes that weights reach by a tree"
    )

    @classmethod
    def of(cls, flow: WeightFlow | None) -> "Weights | None":
        if flow is None:
            return None
        return cls(
            homes=flow.homes,
            sharded=flow.sharded,
            route=flow.weights,
            gradients=flow.gradients,
            ranks_per_node=flow.ranks_per_node,
        )

    def flow(self) -> WeightFlow:
        return WeightFlow(self.homes, self.sharded, self.route, self.gradients, self.ranks_per_node)


class Versions(Record):
    """The rule of updates, and of the versions that ops read: a `WeightVersions`."""

    update_every: PositiveCount = Field(
        description="micro-batches of an update, of each rank of a stage"
    )
    forward: ForwardReads
    backward: BackwardReads

    @classmethod
    def of(cls, rule: WeightVersions | None) -> "Versions | None":
        if rule is None:
            return None
        return cls(update_every=rule.every, forward=rule.forward, backward=rule.backward)

    def rule(self) -> WeightVersions:
        return WeightVersions(self.update_every, self.forward, self.backward)
