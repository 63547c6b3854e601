"""Common parts of all searches: the clock, and the reason why one ends."""
