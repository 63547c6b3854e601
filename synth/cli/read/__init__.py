"""Reading what a command line asks for."""
