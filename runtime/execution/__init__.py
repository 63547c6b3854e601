"""Replaying one rank's lowered program: ops, transfers, reductions, and when each ran."""
