"""Conversion of schedules to and from the formats of other projects; one file for each format."""
