"""`synth solve` says how its choice of a placement changes over an estimate's uncertainty."""

import json

import pytest

from synth.estimates.factors import Factors
from synth.layouts.stability import under_draws
from tests.cli.conftest import Synth

SIZES = ("--ranks", "2", "--micro-batches", "4", "--time-limit", "1s")


def test_an_estimated_choice_has_its_draws(synth: Synth) -> None:
    ended = synth("solve", "llama3-8b-h100-tp8", *SIZES, "--format", "json")
    found = json.loads(ended.stdout)["stability"]
    assert len(found["placements"]) == len(found["wins"]) > 1
    assert sum(found["wins"]) == found["draws"] == 32
    assert 0 <= found["median_regret"] <= found["worst_regret"] < 1
    assert found["placements"][0] == json.loads(ended.stdout)["candidates"][0]["name"]


def test_a_choice_with_a_part_of_layers_recomputed_has_its_draws(synth: Synth) -> None:
    words = ("--recompute", "selective:1-4", "--format", "json")
    ended = synth("solve", "llama3-8b-h100-tp8", *SIZES, *words)
    assert ended.code == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert found["recompute_policies"] == {"selective": [1, 2, 3, 4]}
    assert found["stability"]["draws"] == 32


def test_a_measured_profile_has_none(synth: Synth) -> None:
    ended = synth("solve", "gpt-bytes-cpu", *SIZES)
    assert "draws of the estimate" not in ended.stdout


def test_one_placement_is_no_choice(synth: Synth) -> None:
    ended = synth("solve", "llama3-8b-h100-tp8", *SIZES, "--placement", "linear")
    assert ended.code == 0 and "draws of the estimate" not in ended.stdout


def test_draws_count_the_fastest_choice() -> None:
    factors = Factors((1.0, 1.0, 1.0), (0.0, 0.0, 0.5))
    never = under_draws(factors, lambda one: [2.0, 1.0], 20, 0, lambda: False)
    assert never is not None and never.wins == (0, 20) and never.worst_regret == 1.0
    # The first choice is communication alone, which is faster in about half of the draws.
    half = under_draws(factors, lambda one: [one.values[2], 1.0], 400, 0, lambda: False)
    assert half is not None and half.wins[0] == pytest.approx(200, abs=40)
    assert 0 < half.median_regret + half.worst_regret < 10
    assert under_draws(factors, lambda one: [1.0], 20, 0, lambda: True) is None
