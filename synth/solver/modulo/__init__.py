"""Modulo scheduling: repeating schedules of one micro-batch or several per interval (Rau 1994)."""
