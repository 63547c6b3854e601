"""Exact memory and times of an order of ops."""
