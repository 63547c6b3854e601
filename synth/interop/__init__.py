"""Schedules out of and into other people's formats; one file for each format."""
