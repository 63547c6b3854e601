"""This executor beside PyTorch's schedule runtime: the same stages, schedule and data."""
