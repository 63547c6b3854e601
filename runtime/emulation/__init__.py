"""Simulated devices: the real executor and channels, but ops only take their time and memory."""
