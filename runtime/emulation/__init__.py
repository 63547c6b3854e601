"""Emulated devices: the real executor and channels, but ops that only take their time and memory.

Nothing is computed. An op sleeps until the profile's time is over, so that many ranks can share few
processors; the bytes it would hold are allocated, not touched. Transfers are real and carry the
real sizes; where this machine is faster than the plan's links, they are delayed to the links' pace.
"""
