"""What all searches share: the clock, and the reason why one ends."""
