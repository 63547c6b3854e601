"""The exact model for CP-SAT, and the processes that solve it."""
