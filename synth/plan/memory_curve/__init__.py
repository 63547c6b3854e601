"""Time against memory: the curve, and the least memory for a target time."""
