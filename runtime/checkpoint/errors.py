"""Damaged checkpoints, of which nothing may be used."""

from synth.errors import Mismatch


class Damaged(Mismatch):
    """A file of a checkpoint is missing, cut short, changed, or of another checkpoint."""
