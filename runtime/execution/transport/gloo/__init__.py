"""Gloo groups, the point-to-point channels on them, and sockets for small messages."""
