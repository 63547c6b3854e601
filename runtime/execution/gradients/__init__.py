"""Gradients that several ranks contribute to: their layout, and their reduction."""
