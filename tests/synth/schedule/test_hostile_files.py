"""Plans, profiles and traces with arbitrary values are read, or refused with a message."""

import copy
import json
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from synth.errors import SynthError
from synth.families import generate
from synth.profile import Profile
from synth.profiles import find
from synth.report.explain.overlay import overlay
from synth.report.text.gantt import render
from synth.schedule.files.check_against_profile import differences
from synth.schedule.files.fingerprint import Fingerprint, stored_fingerprint
from synth.schedule.files.plan_file import Plan
from synth.schedule.measured.execution_trace import planned_execution
from synth.schedule.measured.trace_file import Source, Trace, TracedStep

PROFILE = Profile.load(find("zb-1.5b-p8-m24"))
PLAN = Plan.of(PROFILE, [6] * 4, generate("zb-h1", 4, 4))
LOWERED, TIMELINE = PLAN.check()
STEP = TracedStep.of(planned_execution(TIMELINE), 0, TIMELINE.makespan_us)
TRACE = Trace.of(PLAN, Source.SIMULATED, [STEP])

# Values that are wrong nearly everywhere, and at the edges of what numbers can be.
NUMBERS = (0, -1, 1, 10**9, 2**31, 2**62, 2**63, 10**40, 10**99, 1.5, 1e308, -1e308, 1e-320)
TEXTS = ("", "x", "\x1b[31m", "\ud800", "a" * 1000, "F0.0 F0.0", "STEP0", "act(0,0)", "nan")
ODD: tuple[Any, ...] = (*NUMBERS, *TEXTS, None, True, [], [[]], {}, {"a": 1}, [0] * 5)

Place = tuple[str | int, ...]


def places(data: object, way: Place = ()) -> Iterator[Place]:
    """All places of parsed JSON, of long lists the first few."""
    entries: list[tuple[str | int, object]] = []
    if isinstance(data, dict):
        entries = list(data.items())
    elif isinstance(data, list):
        entries = list(enumerate(data[:6]))
    for key, value in entries:
        yield (*way, key)
        yield from places(value, (*way, key))


def damage(rng: random.Random, data: Any, place: Place) -> None:
    """Put an unusual value there, or remove the value."""
    for key in place[:-1]:
        data = data[key]
    if rng.random() < 0.1:
        del data[place[-1]]
    else:
        data[place[-1]] = copy.deepcopy(rng.choice(ODD))


def use_plan(text: str, folder: Path) -> None:
    plan = Plan.from_json(text)
    stored = stored_fingerprint(json.loads(text))
    assert stored is None or Fingerprint.of(json.loads(text)).changed_since(stored)
    list(differences(plan, PROFILE))
    plan.check()


def use_profile(text: str, folder: Path) -> None:
    Plan.of(Profile.from_json(text), [6] * 4, generate("zb-h1", 4, 4)).check()


def use_trace(text: str, folder: Path) -> None:
    (folder / "trace.json").write_text(text)
    overlaid = overlay(PLAN, LOWERED, folder / "trace.json")
    assert overlaid.measured is not None
    render(overlaid.planned.ops, measured=overlaid.measured.ops, width=80)


@pytest.mark.parametrize(
    ("file", "use"),
    [(PLAN, use_plan), (PROFILE, use_profile), (TRACE, use_trace)],
    ids=["plan", "profile", "trace"],
)
def test_anything_anywhere_in_a_file_is_read_or_refused_in_words(
    file: Plan | Profile | Trace, use: Callable[[str, Path], None], tmp_path: Path
) -> None:
    rng, data = random.Random(0), json.loads(file.to_json())
    everywhere = list(places(data))
    num_refused = 0
    for _ in range(800):
        damaged = copy.deepcopy(data)
        damage(rng, damaged, rng.choice(everywhere))
        if damaged == data:
            continue
        num_refused += 1
        with suppress(SynthError):
            use(json.dumps(damaged), tmp_path)
            num_refused -= 1
    assert num_refused > 400
