"""Modulo scheduling: repeating schedules of one micro-batch or several per period (Rau 1994)."""
