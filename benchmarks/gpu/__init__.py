"""What one CUDA device can show, step by step, each bounded in time and none fatal."""
