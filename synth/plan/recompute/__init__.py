"""Recomputation: stages and layers whose activations are rebuilt before their backward."""
