"""The rule by which `make test` leaves tests out."""

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
