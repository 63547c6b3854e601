"""Plan files: format, fingerprint, comparison with their profile."""
