"""Choosing placement and partition: a race between candidates."""
