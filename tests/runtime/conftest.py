"""Fixtures for tests that need several processes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.gloo_pool import GlooPool
from tests.runtime.rank_threads import RankThreads


@pytest.fixture(scope="session")
def pool() -> Iterator[Any]:
    """Processes that can form gloo groups of up to four ranks."""
    made = GlooPool(4)
    yield made
    made.close()


@pytest.fixture(params=["gloo", "threads"])
def ranks(request: pytest.FixtureRequest) -> Any:
    """Ranks as processes on gloo, and as threads of this process; both must behave alike."""
    return request.getfixturevalue("pool") if request.param == "gloo" else RankThreads()


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """A file of English to train on."""
    path = tmp_path / "text.txt"
    path.write_text("the quick brown fox jumps over the lazy dog. " * 40)
    return path
