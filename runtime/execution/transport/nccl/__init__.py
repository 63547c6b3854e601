"""NCCL communicators, and the point-to-point channels on them."""
