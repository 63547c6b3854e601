"""The rule by which `make test` leaves tests out."""

from pathlib import Path

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
