"""What touches a device: models, the split backward, channels, executor, trainer, profiler."""
