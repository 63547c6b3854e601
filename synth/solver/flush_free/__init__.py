"""Search for schedules without a flush: modulo scheduling with versions of the weights."""
