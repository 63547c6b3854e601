"""Plans, answers, help and errors are those recorded in `tests/golden`; `make golden` runs this.

After a change that is meant to change it: `python -m tests.golden --record`.
"""

import importlib.util
from collections.abc import Iterator
from typing import Any

import pytest

from tests.golden.answers import ANSWERS
from tests.golden.errors import CALL_ERRORS, COMMAND_ERRORS, inputs
from tests.golden.golden_set import GoldenSet
from tests.golden.help import HELP
from tests.golden.keys import KEYS, structure
from tests.golden.plans import PLANS
from tests.golden.sets import SETS

HAS_TORCH = importlib.util.find_spec("torch") is not None

# Cases that begin so import torch.
WITH_TORCH = ("emulate", "rehearse", "run ", "profile ", "profile, ", "synth.Pipeline")


@pytest.mark.parametrize("golden", SETS, ids=lambda golden: golden.name)
def test_all_cases_are_recorded_and_nothing_else(golden: GoldenSet) -> None:
    assert sorted(golden.recorded()) == sorted(golden.cases)


def compare(golden: GoldenSet, case: str) -> None:
    if not HAS_TORCH and case.startswith(WITH_TORCH):
        pytest.skip("needs torch")
    assert golden.found(case) == golden.recorded()[case]


@pytest.mark.parametrize("case", HELP.cases)
def test_help(case: str) -> None:
    compare(HELP, case)


@pytest.fixture(scope="module")
def folder() -> Iterator[None]:
    with inputs():
        yield


@pytest.mark.parametrize("case", COMMAND_ERRORS.cases)
def test_the_error_of_a_command(case: str, folder: None) -> None:
    compare(COMMAND_ERRORS, case)


@pytest.mark.parametrize("case", CALL_ERRORS.cases)
def test_the_error_of_a_call(case: str, folder: None) -> None:
    compare(CALL_ERRORS, case)


@pytest.mark.parametrize("case", KEYS.cases)
def test_the_keys_of_an_answer(case: str) -> None:
    compare(KEYS, case)


@pytest.mark.parametrize("case", ANSWERS.cases)
def test_an_answer(case: str) -> None:
    compare(ANSWERS, case)


@pytest.mark.parametrize("case", PLANS.cases)
def test_a_plan(case: str) -> None:
    compare(PLANS, case)


def test_a_structure_has_all_types_of_each_place() -> None:
    value: dict[str, Any] = {"a": [{"b": 1}, {"b": None, "c": []}, {"b": 2.5}], "d": True}
    assert structure(value) == {
        "a[].b": "null or number",
        "a[].c": "empty list",
        "d": "bool",
    }
