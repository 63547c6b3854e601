"""Lowering: from compute ops to each rank's program with transfers and reductions."""
