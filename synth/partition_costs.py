"""Costs of the stages of a partition, by the path that programs import (`docs/library.md`)."""

from synth.costs.partition_costs import partition_costs

__all__ = ["partition_costs"]
