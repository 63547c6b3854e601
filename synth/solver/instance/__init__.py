"""The problem as plain integers: stage copies, memory models, event graph, timings."""
