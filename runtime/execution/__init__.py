"""Replaying one rank's lowered program: ops, transfers and reductions, with their times."""
