"""Programs that use the library; none is installed."""
