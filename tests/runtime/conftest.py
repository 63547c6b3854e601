"""Fixtures for tests that need several processes."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def pool() -> Iterator[Any]:
    """Four processes that can form gloo groups of up to four ranks."""
    sys.path.insert(0, str(Path(__file__).parent))
    from gloo_pool import GlooPool

    made = GlooPool(4)
    yield made
    made.close()
