"""One stage on a rank: its forwards and backwards, what they save, and where that is kept."""
