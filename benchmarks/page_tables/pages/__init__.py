"""The tables of each page: modules with `TABLES`, found by being in this folder."""
