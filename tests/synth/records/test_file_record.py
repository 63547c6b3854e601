"""JSON files of records: what no program should have to guess is refused."""

from io import StringIO
from pathlib import Path
from typing import Any

import pytest

import synth
from synth.errors import SynthError
from synth.profile import Profile
from synth.profiles import find

NAME = "zb-1.5b-p8-m24"


@pytest.mark.parametrize("given", [None, 3, b"plan.json", StringIO(), ["plan.json"], "", "a\0b"])
def test_what_is_no_path_is_refused(given: Any) -> None:
    plan = synth.simulate("1f1b", NAME, ranks=4, micro_batches=4)
    for call in (Profile.load, synth.Plan.load, plan.save, Profile.load(find(NAME)).save):
        with pytest.raises(SynthError, match=r"is no path of a file; give a text such as"):
            call(given)


def test_a_key_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    text = Profile.load(find(NAME)).to_json()
    twice = tmp_path / "twice.json"
    twice.write_text(text.replace('"capacity_bytes"', '"capacity_bytes": 1,\n "capacity_bytes"', 1))
    with pytest.raises(SynthError, match="the key 'capacity_bytes' is there twice"):
        Profile.load(twice)


def test_the_byte_order_mark_of_an_editor_is_no_error(tmp_path: Path) -> None:
    marked = tmp_path / "marked.json"
    marked.write_text(Profile.load(find(NAME)).to_json(), encoding="utf-8-sig")
    assert Profile.load(marked) == Profile.load(find(NAME))
