"""Gradients that several ranks hold a part of: their layout, and how they are added up."""
