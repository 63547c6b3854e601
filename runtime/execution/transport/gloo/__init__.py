"""Connections that only gloo on one machine needs."""
