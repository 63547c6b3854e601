"""Searches behind `synth solve`."""
