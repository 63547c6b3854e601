"""Ranks of a plan, one after the other on one device: real modules, kernels and memory."""

from .rehearse import rehearse

__all__ = ["rehearse"]
