"""`synth solve --target steady`: the least memory without a bubble once the pipeline is full."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from synth.families import generate
from synth.plan.choose.candidates import Ranking
from synth.plan.memory_curve.steady_cap import SteadyCap
from synth.plan.search_space import OneCandidate
from synth.schedule.files.plan_file import Plan
from synth.solver.options import SolveOptions
from synth.solver.problem import Problem
from tests.cli.conftest import SMALL_SOLVE, Synth

STEADY = ("--mem-limit", "min", "--target", "steady")


def test_the_least_limit_without_a_bubble_once_full(synth: Synth, tmp_path: Path) -> None:
    wanted = (*STEADY, "--placement", "v", "--time-limit", "90s")
    ended = synth(*SMALL_SOLVE, *wanted, "-o", tmp_path / "plan.json")
    assert ended.code == 0
    assert "one more micro-batch takes" in ended.stdout
    plan = Plan.load(tmp_path / "plan.json")
    plan.check()
    assert plan.caps_bytes is not None
    assert max(plan.claim.peak_bytes) <= plan.caps_bytes[0]
    with_1f1b_bytes = 36_695_000_000
    assert plan.caps_bytes[0] < with_1f1b_bytes


@pytest.mark.parametrize(
    ("is_interrupted", "code", "stopped_by", "words"),
    [
        (False, 4, "time limit", "no schedule that repeats without bubble was found in the time"),
        (True, 130, "interrupt", "interrupted before a schedule that repeats without bubble"),
    ],
)
def test_where_nothing_is_found_it_ends_as_other_searches_do(
    synth: Synth,
    monkeypatch: pytest.MonkeyPatch,
    is_interrupted: bool,
    code: int,
    stopped_by: str,
    words: str,
) -> None:
    def nothing(problem: Problem, options: SolveOptions, stop: threading.Event) -> None:
        if is_interrupted:
            stop.set()

    monkeypatch.setattr("synth.plan.memory_curve.steady_cap.least_steady", nothing)
    ended = synth(*SMALL_SOLVE, *STEADY, "--format", "json")
    found = json.loads(ended.stdout)
    assert (ended.code, found["stopped_by"]) == (code, stopped_by)
    assert found["plan"] is None and found["value_us"] is None
    assert words in found["message"] and words in ended.stderr
    assert "24 layers on 4 ranks" in ended.stderr.split("\n")[0]


def test_both_searches_share_the_time_limit(synth: Synth, monkeypatch: pytest.MonkeyPatch) -> None:
    limits_s, search = [], OneCandidate.search

    def found_at_once(problem: Problem, options: SolveOptions, stop: threading.Event) -> SteadyCap:
        return SteadyCap(60 * 10**9, None, generate("1f1b", 4, 4), 100.0, 100)

    def searched(space: OneCandidate, options: SolveOptions, *rest: Any) -> Ranking:
        limits_s.append(options.time_limit_s)
        return search(space, options, *rest)

    monkeypatch.setattr("synth.plan.memory_curve.steady_cap.least_steady", found_at_once)
    monkeypatch.setattr(OneCandidate, "search", searched)
    for arguments in (("--deterministic",), ()):
        ended = synth(*SMALL_SOLVE, *STEADY, "--time-limit", "1s", *arguments)
        assert ended.code == 0 and "memory limit found: 60 GB" in ended.stderr
    assert limits_s[0] == pytest.approx(0.4)
    assert 0 < limits_s[1] < 1
