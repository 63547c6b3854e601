"""Pipelines in other training programs: what their recipes have in common."""
