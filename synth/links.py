"""Links between ranks, by the path that programs import (`docs/library.md`)."""

from synth.profile.links import Link, Links, NodeLink, PairLink

__all__ = ["Link", "Links", "NodeLink", "PairLink"]
