"""Fixtures for tests that need several processes."""

from pathlib import Path
from typing import Any

import pytest

from tests.runtime.rank_threads import RankThreads


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
