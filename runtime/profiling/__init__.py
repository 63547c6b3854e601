"""Measuring layers and links: what `synth profile` does."""
