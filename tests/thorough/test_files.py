"""Files of every kind, changed at random: refused with one message, or read correctly."""

import json
import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from synth.errors import SynthError
from synth.families import generate
from synth.plan.memory_curve.curve_file import MemoryCurve
from synth.profile import Profile
from synth.profiles import find
from synth.schedule.files.claim import Claim
from synth.schedule.files.plan_file import Plan
from synth.schedule.verify import ScheduleError
from tests.cli.conftest import NAME, Synth
from tests.synth.plain import damaged, random_costs, random_schedule, shuffled
from tests.synth.plan.test_memory_curve import traced
from tests.thorough.examples import Examples
from tests.thorough.mutations import changed_file
from tests.thorough.oracle import complaint, is_stuck

Files = dict[str, Path]


@pytest.fixture
def files(tmp_path: Path, synth: Synth) -> Files:
    """A valid file of each kind that commands read."""
    made = {
        kind: tmp_path / f"valid-{kind}" for kind in ("profile", "plan", "trace", "curve", "csv")
    }
    profile = Profile.load(find(NAME))
    profile.save(made["profile"])
    schedule = generate("zb-h1", 4, 4)
    Plan.of(profile, [6] * 4, schedule, caps_bytes=(10**11,) * 4).save(made["plan"])
    assert synth("show", made["plan"], "--trace", made["trace"]).code == 0
    assert synth("export", made["plan"], "-o", made["csv"]).code == 0
    small_curve().save(made["curve"])
    return made


@cache
def small_curve() -> MemoryCurve:
    return traced()[0]


def commands(kind: str, files: Files, changed: Path, folder: Path) -> list[tuple[Any, ...]]:
    """The command that reads a file of a kind."""
    by_kind: dict[str, list[tuple[Any, ...]]] = {
        "profile": [
            ("compare", changed, "-r", "4", "-m", "4", "--only", "zb-h1", "--no-solve"),
            ("check", files["plan"], "--profile", changed),
        ],
        "plan": [("check", changed), ("show", changed, "--width", "80"), ("export", changed)],
        "trace": [("show", files["plan"], "--width", "80", "--measured", changed)],
        "curve": [],
        "csv": [("import", changed, files["profile"], "-o", folder / "imported.json")],
    }
    return by_kind[kind]


@pytest.mark.thorough(share=0.03)
@pytest.mark.parametrize("kind", ["profile", "plan", "trace", "curve", "csv"])
def test_a_changed_file_is_read_or_refused_in_one_message(
    kind: str, files: Files, synth: Synth, examples: Examples, tmp_path: Path
) -> None:
    content = files[kind].read_bytes()
    changed, imported = tmp_path / "changed", tmp_path / "imported.json"

    def check(draw: random.Random) -> None:
        changed.write_bytes(changed_file(draw, content, is_json=kind != "csv"))
        for command in commands(kind, files, changed, tmp_path):
            ended = synth(*command)  # an exception is a failure of the test
            assert ended.code in (0, 2, 3, 4, 5), ended
            assert (ended.code == 0) == (not ended.stderr.startswith("error: ")), ended
            assert ended.stderr.replace("\n", "").isprintable(), ended
        if kind == "curve":
            read_or_refuse(lambda: MemoryCurve.load(changed).check())
        if kind == "plan" and is_accepted(changed):
            assert complaint(Plan.load(changed)) is None
        if imported.exists():
            assert complaint(Plan.load(imported)) is None
            imported.unlink()

    examples.each(check)


def read_or_refuse(read: Callable[[], object]) -> None:
    """Only an error with a message is allowed."""
    try:
        read()
    except SynthError as error:
        assert str(error)


def is_accepted(path: Path) -> bool:
    try:
        Plan.load(path).check()
    except SynthError:
        return False
    return True


@pytest.mark.thorough(share=0.08)
def test_every_plan_that_is_accepted_is_right_and_no_deadlock_is_made_up(
    files: Files, examples: Examples, tmp_path: Path
) -> None:
    template = json.loads(files["plan"].read_text())
    path, counts = tmp_path / "plan.json", {"accepted": 0, "stuck": 0, "refused": 0}

    def check(draw: random.Random) -> None:
        schedule = random_schedule(draw)
        costs = random_costs(draw, schedule.placement.num_stages, schedule.num_ranks)
        if draw.random() < 0.6:
            schedule = draw.choice((shuffled, damaged))(draw, schedule)
        num_stages = schedule.placement.num_stages
        data = template | {
            "partition": [1] * num_stages,
            "layers": [f"layer {stage}" for stage in range(num_stages)],
            "placement": schedule.placement.ranks,
            "receive_ahead": schedule.buffering.receive_ahead,
            "send_behind": schedule.buffering.send_behind,
            "eager": schedule.eager,
            "num_micro_batches": schedule.num_micro_batches,
            "programs": [" ".join(map(str, program)) for program in schedule.programs],
            "costs": costs.model_dump(mode="json", exclude_none=True),
            "caps_bytes": None,
        }
        data.pop("fingerprint")
        plan = Plan.model_validate_file(data, "the plan")
        try:
            claim = Claim.of(schedule, costs)
        except ScheduleError as error:
            if "deadlock" in str(error):
                counts["stuck"] += 1
                assert is_stuck(schedule, costs), error
            else:
                counts["refused"] += 1
                assert complaint(plan) is not None, error
            return
        # Caps at the peaks, or one byte below one of them.
        caps = [max(1, peak) for peak in claim.peak_bytes]
        caps[draw.randrange(len(caps))] -= draw.choice((0, 1))
        plan = plan.replace(claim=claim, caps_bytes=tuple(max(1, cap) for cap in caps))
        plan.save(path)
        found = complaint(Plan.load(path))
        assert is_accepted(path) == (found is None), found
        counts["accepted"] += found is None

    examples.each(check)
    assert any(counts.values())
