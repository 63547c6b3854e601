"""The number of processors, on every system."""

import os

import pytest

from synth.system.processors import num_processors


def test_there_is_one_at_least_also_where_the_system_does_not_tell_whose_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert 1 <= num_processors() <= (os.cpu_count() or 1)
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert num_processors() == (os.cpu_count() or 1)
