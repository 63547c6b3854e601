"""Plan files: format, fingerprint, claim with its certificate, comparison with their profile."""
