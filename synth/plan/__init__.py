"""Questions around the solver: partitions, the least memory for a time, time against memory."""
