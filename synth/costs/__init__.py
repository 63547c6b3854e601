"""Costs of stages and transfers: microseconds and bytes."""
