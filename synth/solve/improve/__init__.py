"""Heuristics that find schedules and better ones."""
