"""Large-neighbourhood search over windows of time (Shaw 1998)."""
