"""Interfaces between the parts of the executor, and the state of a step."""
