"""Sweeps over random cases: some in every run of all tests, all of them every night."""

from collections.abc import Sequence
from typing import Any

import pytest


def sweep(cases: Sequence[Any], daily: int) -> list[Any]:
    """Return the cases for `parametrize`; those behind the first `daily` are marked `nightly`.

    A case that is a tuple has a value for each argument.
    """
    return [
        *cases[:daily],
        *(
            pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.nightly)
            for case in cases[daily:]
        ),
    ]
