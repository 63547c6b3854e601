"""The tables by subject; `TABLES` of a module are found by being there."""
