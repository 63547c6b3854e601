"""What holds for all tests."""

import os

from hypothesis import HealthCheck, settings

# Random examples are the same every time, and no machine is too slow for them. To look for new
# ones: HYPOTHESIS_PROFILE=default.
settings.register_profile(
    "repeatable",
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))
