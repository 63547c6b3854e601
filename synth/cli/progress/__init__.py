"""Time limits, interrupts, and lines of progress."""
