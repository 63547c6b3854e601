"""The profile of a model on a device: layers, links, workload, FLOPs, and how it was measured."""

from synth.profile.profile import Profile, Provenance

__all__ = ["Profile", "Provenance"]
