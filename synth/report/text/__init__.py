"""Charts and tables for a terminal."""
