"""Memory limits in the CP-SAT model, in three forms."""
