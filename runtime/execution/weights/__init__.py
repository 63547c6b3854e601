"""Weights that travel: parameters that are on a rank during visits only, and sums of gradients."""
