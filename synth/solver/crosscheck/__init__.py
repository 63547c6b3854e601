"""An independent solver of the same problem, for checking."""
