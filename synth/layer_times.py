"""Layers that were measured elsewhere, by the path that programs import (`docs/library.md`)."""

from synth.profile.layer_times import LayerTimes
from synth.profile.tied_parameters import TiedParameters

__all__ = ["LayerTimes", "TiedParameters"]
