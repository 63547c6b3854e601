"""The choice of where weights are: with their stages, on a ring, gathered, or on every rank."""
