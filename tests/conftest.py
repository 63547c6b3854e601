"""What holds for all tests."""

import os

from hypothesis import HealthCheck, settings

# Kernels of small tensors gain nothing from threads, and where several tests run at a time,
# threads that wait for each other cost many times what they do. Set before torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Random examples are the same every time, and no machine is too slow for them. To look for new
# ones: HYPOTHESIS_PROFILE=default.
settings.register_profile(
    "repeatable",
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))
