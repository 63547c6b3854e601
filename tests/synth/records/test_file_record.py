"""JSON files of records: later fields may be absent; what one would have to guess is refused."""

import re
from io import StringIO
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pydantic import Field

import synth
from synth.errors import SynthError
from synth.profile import Profile
from synth.profiles import find
from synth.records.record import BriefRecord

NAME = "zb-1.5b-p8-m24"


class _Later(BriefRecord):
    LEFT_OUT: ClassVar[tuple[str, ...]] = ("share", "table")

    count: int = 0
    share: float | None = None
    table: dict[str, int] = Field(default_factory=dict)


def test_json_has_a_later_field_only_where_it_is_not_at_its_default() -> None:
    assert _Later().model_dump_json() == '{"count":0}'
    assert _Later(share=0, table={"a": 1}).model_dump() == {
        "count": 0,
        "share": 0,
        "table": {"a": 1},
    }


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


@pytest.mark.parametrize("text", ["null", "true", "3", "[]"])
def test_what_is_no_object_is_shown_as_json_writes_it(text: str) -> None:
    with pytest.raises(SynthError, match=f"the text holds {re.escape(text)}, needed an object"):
        Profile.from_json(text)


def test_the_byte_order_mark_of_an_editor_is_no_error(tmp_path: Path) -> None:
    marked = tmp_path / "marked.json"
    marked.write_text(Profile.load(find(NAME)).to_json(), encoding="utf-8-sig")
    assert Profile.load(marked) == Profile.load(find(NAME))
