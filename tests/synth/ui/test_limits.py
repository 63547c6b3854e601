"""Requests for too much are refused before anything large is made."""

import json
from pathlib import Path
from typing import Any

import pytest

import synth
from synth.estimates.model_config import known_model
from synth.schedule.placements import placement
from synth.ui.limits import MOST_LAYERS, named_copies, named_stages
from synth.ui.models import Recent
from tests.synth.ui_pages import SETTING, Client

PROFILE = "zb-1.5b-p8-m24"


@pytest.fixture
def client(tmp_path: Path) -> Client:
    return Client(tmp_path)


NAMES = (
    "linear looped:3 v wave:2 bidirectional bidirectional-v bidirectional-looped:2 all-stages:2 "
    "bidirectional-wave:2 all-stages dispatched:2-3 round-robin:2 round-robin:4-1-3"
)


@pytest.mark.parametrize("name", NAMES.split())
def test_a_name_says_how_many_stages_its_placement_has(name: str) -> None:
    where = placement(name, 8)
    assert named_stages(name, 8) == where.num_stages
    assert named_copies(name, 8) == where.num_stages * len(where.ranks)


@pytest.mark.parametrize(
    ("name", "ranks"),
    [("looped:1000", 1024), ("wave:3000", 512), ("all-stages:900", 900), ("dispatched:99-1", 999)],
)
@pytest.mark.parametrize("path", ["draw", "solve", "curve"])
def test_a_placement_of_too_many_stages_is_refused_by_its_name(
    client: Client, monkeypatch: pytest.MonkeyPatch, path: str, name: str, ranks: int
) -> None:
    def made(*_: object) -> None:
        raise AssertionError("a placement is made")

    for place in ("synth.ui.setting.placement", "synth.ui.drawing.placement"):
        monkeypatch.setattr(place, made)
    refused = client.post(path, {"setting": {"placement": name, "ranks": ranks}})
    assert refused.status_code == 400
    assert "are too many for a schedule here" in refused.json()["error"]


def test_a_family_of_too_many_stages_is_refused_by_its_name(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("synth.ui.drawing.family_placement", lambda *_: pytest.fail("made"))
    (one,) = client.draw({"schedule": "interleaved:900"}, ranks=1024)["drawn"]
    assert "are too many for a schedule here" in one["error"]


def test_there_are_no_choices_where_there_are_more_stages_than_layers(client: Client) -> None:
    assert client.draw(placement="looped:9")["choices"] == []
    assert client.draw(placement="auto", ranks=25)["choices"] == []


def config(**changes: Any) -> str:
    return json.dumps({**known_model("llama3-8b").config, **changes})


def test_a_model_of_too_many_layers_is_refused_before_they_are_made(tmp_path: Path) -> None:
    client = Client(tmp_path)
    text = config(num_hidden_layers=10**8)
    refused = client.post("open", {"text": text})
    assert refused.status_code == 400
    assert f"100,000,000 layers; a model here has at most {MOST_LAYERS:,}" in refused.text
    (tmp_path / "deep.json").write_text(text)
    setting = {**SETTING, "model": "deep.json", "device": "h100"}
    refused = client.post("draw", {"setting": setting})
    assert refused.status_code == 400 and "a model here has at most" in refused.text
    assert client.post("open", {"text": config(num_hidden_layers=MOST_LAYERS)}).status_code == 200


def test_a_profile_of_too_many_layers_is_refused(client: Client) -> None:
    path = Path(synth.__file__).parents[1] / "profiles" / f"{PROFILE}.json"
    data = json.loads(path.read_text(encoding="utf-8"))
    data["layers"] = data["layers"][:1] * (MOST_LAYERS + 1)
    refused = client.post("open", {"text": json.dumps(data)})
    assert refused.status_code == 400
    assert "1,025 layers; a model here has at most 1,024" in refused.json()["error"]


def test_schedules_are_kept_within_a_budget() -> None:
    kept: Recent[str] = Recent(len, 5)
    for text in ("aa", "bbb", "c"):
        kept.keep(text, text)
    assert (kept.get("aa"), kept.get("bbb"), kept.get("c")) == (None, "bbb", "c")
    kept.keep("large", "d" * 9)
    assert kept.keys() == ["large"]
