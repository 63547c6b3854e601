"""The rule by which `make test` leaves tests out."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.conftest import DURATIONS, LONGEST_ALONE_S, LONGEST_S, load_durations, slow_tests

ROOT = Path(__file__).parent.parent


def test_cases_beyond_the_time_of_a_function_are_left_out_but_the_quickest_one() -> None:
    between = (LONGEST_S + LONGEST_ALONE_S) / 2
    third = LONGEST_S / 3
    cpu_s = {
        **{"a::x[1]": between, "a::x[2]": between, "a::y[1]": between, "b::z": 9.0},
        **{"a::w[1]": third * 1.1, "a::w[2]": third, "a::w[3]": third * 1.2},
    }
    names = [*cpu_s, "a::y[2]"]
    assert slow_tests(names, cpu_s) == {"a::x[2]", "a::y[1]", "b::z", "a::w[3]"}
    assert slow_tests(names, {}) == set()


def test_of_many_cases_that_are_not_listed_the_first_ones_stay() -> None:
    names = [f"a::x[{number}]" for number in range(100)]
    assert names[10] not in slow_tests(names, {})
    assert names[-1] in slow_tests(names, {})


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

@pytest.mark.slow
def test_marked():
    compute(1.2)

def test_that_waits():
    time.sleep(1.2)

def test_that_computes():
    compute(1.2)
"""


def test_times_are_measured_in_all_workers_and_kept_for_what_did_not_run(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = slow\n")
    (tmp_path / "test_busy.py").write_text(BUSY)
    before = {"test_busy.py::test_left_out": 7.0, "test_gone.py::test": 7.0}
    listed = tmp_path / "durations.json"
    listed.write_text(json.dumps({"cpu_s": before}))
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-n", "2"),
            *("-p", "tests.cpu_times", "--cpu-times", listed.name),
        ],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    cpu_s = load_durations(listed)
    assert cpu_s.pop("test_busy.py::test_left_out") == 7.0
    cpu_s.pop("test_busy.py::test_that_waits", None)  # imports may take a tenth of a second
    assert sorted(cpu_s) == ["test_busy.py::test_marked", "test_busy.py::test_that_computes"]
    assert min(cpu_s.values()) >= 1.2
    told = [line for line in ended.stdout.splitlines() if "not marked slow: " in line]
    assert [line.rpartition(" ")[2] for line in told] == ["test_busy.py::test_that_computes"]
