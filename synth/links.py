"""Links between ranks, by the path that programs import (`docs/library.md`)."""

from synth.profile.links import Link, Links

__all__ = ["Link", "Links"]
