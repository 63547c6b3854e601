"""Everything that uses torch: models, the split backward, channels, executor, trainer, profiler."""
