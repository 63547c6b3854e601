"""Emulated devices: the real executor and channels, but ops only take their time and memory.

Nothing is computed. An op sleeps for the time in the profile, so that many ranks can share few
processors. The bytes that it would hold are allocated, but not touched. Transfers are real and have
the real sizes; if this machine is faster than the plan's links, they are delayed to the links'
pace.
"""
