"""A checkpoint that is not as it was written, or of another run: nothing of it may be used."""

from synth.errors import Mismatch


class Damaged(Mismatch):
    """A file of a checkpoint is missing, cut short, changed, or of another checkpoint."""
