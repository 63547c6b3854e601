"""A check of one CUDA device in steps, each with a time limit and none fatal."""
