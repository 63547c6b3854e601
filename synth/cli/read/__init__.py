"""Reading of command-line options."""
