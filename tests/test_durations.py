"""The rule by which `make test` leaves tests out, and the limit for those that it runs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import DURATIONS, LONGEST_ALONE_S, LONGEST_S, load_durations, slow_tests

ROOT = Path(__file__).parent.parent


def test_cases_that_take_long_are_left_out_but_each_function_keeps_its_quickest_one() -> None:
    between = (LONGEST_S + LONGEST_ALONE_S) / 2
    cpu_s = {"a::x[1]": between, "a::x[2]": LONGEST_ALONE_S, "a::y[1]": between, "b::z": 9.0}
    names = [*cpu_s, "a::y[2]"]
    assert slow_tests(names, cpu_s) == {"a::x[2]", "a::y[1]", "b::z"}
    assert slow_tests(names, {}) == set()


def test_listed_tests_are_of_files_that_exist() -> None:
    files = {name.partition("::")[0] for name in load_durations(DURATIONS)}
    assert files and [name for name in files if not (ROOT / name).exists()] == []


BUSY = """
import time
import pytest

def compute(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass

@pytest.fixture(scope="session")
def shared():
    compute(0.6)

@pytest.mark.slow
def test_marked():
    compute(0.6)

def test_that_is_the_first_to_use_a_fixture(shared):
    pass

started = []

def test_that_is_the_first_to_import():
    if not started:
        compute(0.6)
        started.append(True)

def test_that_waits():
    time.sleep(0.6)

def test_that_computes():
    compute({})
"""


@pytest.mark.parametrize(("workers", "seconds"), [("0", 0.0), ("2", 0.6)])
def test_a_run_fails_if_a_test_takes_long_that_is_not_marked_slow(
    workers: str, seconds: float, tmp_path: Path
) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = slow\n")
    (tmp_path / "test_busy.py").write_text(BUSY.replace("{}", str(seconds)))
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-n", workers),
            *("-p", "tests.cpu_times", "--longest-unmarked", "0.4"),
        ],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    told = [line for line in ended.stdout.splitlines() if "not marked slow: " in line]
    assert "5 passed" in ended.stdout, ended.stdout + ended.stderr
    if seconds:
        assert ended.returncode == 1
        assert [line.rpartition(" ")[2] for line in told] == ["test_busy.py::test_that_computes"]
        assert "`make durations` marks" in ended.stdout
    else:
        assert ended.returncode == 0 and not told
