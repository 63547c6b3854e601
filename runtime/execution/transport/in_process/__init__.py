"""Ranks as threads of one process, with channels and collectives between them."""
