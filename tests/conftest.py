"""Settings and marks of all tests."""

import gc
import json
import os
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.runtime.gloo_pool import GlooPool

# Kernels of small tensors gain nothing from threads, and where several tests run at a time,
# threads that wait for each other cost many times what they do. Set before torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Compiled modules are kept, whatever the environment says: the tests start hundreds of processes,
# and each of them would compile all of synth anew.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

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

# Processor time that the cases of one test may take together in `make test`: the others are slow.
# The quickest one stays if it takes no longer than the second figure. What is not listed counts the
# third.
LONGEST_S = 0.3
LONGEST_ALONE_S = 0.5
UNLISTED_S = 0.005


@pytest.fixture(scope="session")
def pool() -> Iterator[GlooPool]:
    """Processes that can form gloo groups of up to eight ranks."""
    made = GlooPool(8)
    yield made
    made.close()


@pytest.fixture(scope="session")
def idle_workers() -> Iterator[None]:
    """End the processes at last that searches of memory curves keep."""
    from tests.synth.kept_workers import KeptWorkers

    yield
    while KeptWorkers.idle:
        KeptWorkers.idle.pop().close()


@pytest.fixture
def kept_workers(idle_workers: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Search the points of memory curves in processes that are there already."""
    from tests.synth.kept_workers import KeptWorkers

    monkeypatch.setattr("synth.plan.memory_curve.curve_search.Workers", KeptWorkers)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests as slow that are listed as such, or run by night only."""
    nightly = {item.nodeid for item in items if item.get_closest_marker("nightly")}
    daily = [item.nodeid for item in items if item.nodeid not in nightly]
    slow = nightly | slow_tests(daily, load_durations(DURATIONS))
    for item in items:
        if item.nodeid in slow:
            item.add_marker(pytest.mark.slow)


def pytest_collection() -> None:
    """Look for no garbage while modules are imported and tests are collected: most of it stays."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Spare the garbage collector what is imported by now."""
    gc.collect()
    gc.freeze()
    gc.enable()


def slow_tests(names: Collection[str], cpu_s: Mapping[str, float]) -> set[str]:
    """Return the tests to leave out, given the processor time of those that are listed."""
    cases: dict[str, list[str]] = {}
    for name in names:
        cases.setdefault(name.partition("[")[0], []).append(name)
    slow: set[str] = set()
    for of_one in cases.values():
        taken_s, limit_s = 0.0, LONGEST_ALONE_S
        for name in sorted(of_one, key=lambda name: cpu_s.get(name, UNLISTED_S)):
            taken_s += cpu_s.get(name, UNLISTED_S)
            if taken_s > limit_s:
                slow.add(name)
            limit_s = LONGEST_S
    return slow


def is_slow(item: pytest.Item) -> bool:
    """Return True if `make test` leaves it out."""
    return item.get_closest_marker("slow") is not None


def load_durations(path: Path) -> dict[str, float]:
    """Processor time in seconds of the tests that are listed, by their ids."""
    if not path.exists():
        return {}
    found: dict[str, float] = json.loads(path.read_text())["cpu_s"]
    return found
