"""Proving the bound of a plan file again."""
