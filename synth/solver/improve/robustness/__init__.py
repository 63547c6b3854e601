"""Orders of the same value that lose less when durations vary."""
