"""Connections between ranks: point-to-point channels, process groups, start-up."""
