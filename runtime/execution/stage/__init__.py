"""One stage on a rank: its forwards and backwards, the activations they save, and their storage."""
