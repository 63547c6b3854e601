"""Schedules as one HTML file: Gantt charts and memory curves that zoom, without a network."""
