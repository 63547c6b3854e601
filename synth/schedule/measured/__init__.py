"""Measured schedules: traces and rank logs."""
