"""Settings and marks of all tests."""

import json
import os
from pathlib import Path

import pytest
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

DURATIONS = Path(__file__).with_name("durations.json")

# Processor time above which a test is slow: `make test` leaves it out.
LONGEST_S = 2.0


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests as slow that are listed as such."""
    listed = load_durations(DURATIONS)
    for item in items:
        if listed.get(item.nodeid, 0.0) > LONGEST_S:
            item.add_marker(pytest.mark.slow)


def is_slow(item: pytest.Item) -> bool:
    """Return True if `make test` leaves it out."""
    return item.get_closest_marker("slow") is not None


def load_durations(path: Path) -> dict[str, float]:
    """Processor time of the tests that took more than a second, by their ids."""
    if not path.exists():
        return {}
    found: dict[str, float] = json.loads(path.read_text())["cpu_s"]
    return found
