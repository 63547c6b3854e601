"""A CUDA device on a CPU: calls that look like CUDA's are carried out at once, and recorded."""
