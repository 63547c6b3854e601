"""Comparing a measured run with its plan."""
