"""Explaining a plan: what holds it back, its critical path, idle time, and what changes give."""
