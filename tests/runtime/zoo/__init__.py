"""Kinds of module as people build them, each replayed with its backward split."""
