"""Measuring layers and links, for `synth profile`."""
