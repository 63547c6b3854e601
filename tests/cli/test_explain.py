"""`synth explain`: one screen, JSON and a page."""

import json
from pathlib import Path

import pytest

import synth as library
from synth.plan.explain.idle_causes import CAUSES
from tests.cli.conftest import NAME, Synth

QUICK = ("--time-limit", "1s", "--workers", "1")


@pytest.fixture(scope="module")
def plan_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("explained") / "plan.json"
    plan = library.simulate("1f1b", NAME, ranks=8, micro_batches=8, mem_limit="80GB")
    plan.save(path)
    return path


def test_the_explanation_fits_one_screen(synth: Synth, plan_path: Path) -> None:
    ended = synth("explain", plan_path, *QUICK)
    assert ended.code == 0
    lines = ended.stdout.splitlines()
    assert len(lines) <= 40 and max(map(len, lines)) <= 80
    for words in ("what holds it back is", "critical path:", "warm-up", "every link twice as fast"):
        assert words in ended.stdout


def test_the_bound_of_a_plan_that_was_not_searched_is_of_its_own_ops(
    synth: Synth, tmp_path: Path
) -> None:
    """1F1B that recomputes is far from the best schedule of its partition, and near its own ops."""
    path, among = tmp_path / "plan.json", "among schedules with the same ops"
    plan, better = (
        library.simulate(name, NAME, ranks=8, micro_batches=64, mem_limit="80GB")
        for name in ("1f1b:recompute", "zb-h1")
    )
    plan.save(path)
    assert better.claim.makespan_us < plan.claim.lower_bound_us
    explained = " ".join(synth("explain", path, *QUICK).stdout.split())
    assert f"of the best {among}; what holds it back is" in explained
    assert among in synth("show", path).stdout
    assert "for schedules with the same ops; --prove" in synth("check", path).stdout


KEYS = {
    *("sentence", "plan", "objective", "value_us", "lower_bound_us", "gap", "bound_holds_for"),
    *("held_back_by", "critical_path", "idle", "what_ifs", "notes"),
}


def test_a_plan_of_an_estimated_profile_says_so(synth: Synth, tmp_path: Path) -> None:
    path, name = tmp_path / "plan.json", "llama3-8b-h100"
    library.simulate("1f1b", name, ranks=4, micro_batches=4, mem_limit="none").save(path)
    said = json.loads(synth("explain", path, *QUICK, "--json").stdout)
    checked = json.loads(synth("check", path, "--json").stdout)
    expected = f"times and bytes of {name}: estimated, not measured"
    assert said["on_trust"]["estimate"] == checked["on_trust"]["estimate"] == expected
    assert synth("explain", path, *QUICK).stdout.startswith(f"{name}: estimated, not measured\n")


def test_json_has_every_figure_of_the_library(synth: Synth, plan_path: Path) -> None:
    said = json.loads(synth("explain", plan_path, *QUICK, "--format", "json").stdout)
    explained = library.explain(plan_path, time_limit=1, workers=1)
    assert said.keys() == explained.to_data().keys() == KEYS
    assert said["what_ifs"][0].keys() == {"change", "how", "value_us", "change_share", "note"}
    path = {"length_us", "stages_us", "kinds_us", "transfers_us", "reductions_us", "runs"}
    assert said["critical_path"].keys() == path
    assert said["sentence"] == explained.sentence == str(explained)
    assert [one["idle_us"] for one in said["idle"]] == [one.idle_us for one in explained.idle]
    assert all(
        sum(one[f"{cause}_us"] for cause in CAUSES) == one["idle_us"] for one in said["idle"]
    )


def test_the_page_has_the_explanation(synth: Synth, plan_path: Path, tmp_path: Path) -> None:
    page, shown = tmp_path / "explained.html", tmp_path / "shown.html"
    assert synth("explain", plan_path, *QUICK, "--html", page).code == 0
    assert synth("show", plan_path, "--html", shown).code == 0
    assert "what holds it back is" in page.read_text()
    assert "every link twice as fast" in page.read_text()
    assert "what holds it back is" in shown.read_text()
    assert "every link twice as fast" not in shown.read_text()


def test_a_plan_that_is_not_what_it_claims_is_refused(
    synth: Synth, plan_path: Path, tmp_path: Path
) -> None:
    data = json.loads(plan_path.read_text())
    data["claim"]["makespan_us"] -= 1
    damaged = tmp_path / "damaged.json"
    damaged.write_text(json.dumps(data))
    ended = synth("explain", damaged)
    assert ended.code == 5 and ended.stdout == "" and ended.stderr.count("\n") == 1
