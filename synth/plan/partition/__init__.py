"""Partitions: layers to stages."""
