"""Schedules: ops, placement, file format, lowering, verification, simulation."""
