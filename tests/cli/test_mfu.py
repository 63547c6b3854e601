"""The MFU in the answers of commands, beside tokens per second."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from synth.profile import Profile
from synth.profile.layer_times import LayerTimes
from tests.cli.conftest import NAME, Synth

SIZE = ("--ranks", "2", "--micro-batches", "4")
# 4 micro-batches of 3 · 4 · 2 GFLOP on 2 ranks, each of which reaches 48 GFLOP in the makespan.
RANK_FLOPS = 48e9


@pytest.fixture
def counted(tmp_path: Path) -> Path:
    """A profile with FLOPs and without a peak."""
    layer = LayerTimes(
        name="block", count=4, forward_us=1000, backward_us=2000, forward_flops=2 * 10**9
    )
    path = tmp_path / "profile.json"
    Profile.from_times("mine", [layer]).save(path)
    return path


def solved(synth: Synth, profile: Path, *more: str | Path) -> tuple[str, dict[str, Any]]:
    common = ("solve", profile, *SIZE, "--placement", "linear", "--partition", "even", *more)
    return synth(*common).stdout, json.loads(synth(*common, "--format", "json").stdout)


def test_solve_and_show_say_the_mfu_once_the_peak_is_known(
    synth: Synth, counted: Path, tmp_path: Path
) -> None:
    plan, html = tmp_path / "plan.json", tmp_path / "plan.html"
    text, found = solved(synth, counted, "--peak-flops", "8TFLOPS", "-o", plan)
    expected = RANK_FLOPS / (found["makespan_us"] / 1e6) / 8e12
    assert found["mfu"] == pytest.approx(expected)
    assert f"tokens/s, MFU {100 * expected:.2f} %" in text and "  MFU  " in text
    assert found["rivals"]
    for rival in found["rivals"]:
        assert rival["mfu"] == pytest.approx(RANK_FLOPS / (rival["makespan_us"] / 1e6) / 8e12)
    shown = synth("show", plan, "--html", html)
    assert f"tokens/s, MFU {100 * expected:.2f} %" in shown.stdout
    assert f"MFU {100 * expected:.2f} %" in html.read_text()
    assert '"reason": "no memory limit: rank ' in html.read_text()
    assert json.loads(synth("show", plan, "--format", "json").stdout)["mfu"] == found["mfu"]
    checked = synth("check", plan, "--profile", counted)
    assert checked.code == 0, checked.stderr


def test_without_a_peak_the_flops_of_a_rank_are_said(synth: Synth, counted: Path) -> None:
    text, found = solved(synth, counted)
    per_s = RANK_FLOPS / (found["makespan_us"] / 1e6)
    assert found["model_flops_per_second_per_rank"] == pytest.approx(per_s)
    assert found["mfu"] is None and "MFU" not in text
    assert f"{per_s / 1e12:.4g} TFLOP/s per rank" in text


def test_a_peak_without_flops_is_told_of(synth: Synth, counted: Path) -> None:
    data = json.loads(counted.read_text())
    del data["layer_profiles"]["block"]["forward_flops"]
    counted.write_text(json.dumps(data))
    ended = synth("compare", counted, *SIZE, "--no-solve", "--only", "1f1b", "--peak-flops", "1e12")
    assert "lacks the FLOPs of layer block, so there is no MFU" in ended.stderr
    assert "MFU" not in ended.stdout


def test_compare_has_a_column_that_its_page_has_too(synth: Synth, tmp_path: Path) -> None:
    html = tmp_path / "compare.html"
    only = ("--no-solve", "--only", "1f1b", "--only", "gpipe", "--width", "120")
    size = ("--ranks", "8", "--micro-batches", "24")
    ended = synth("compare", NAME, *size, *only, "--html", html)
    assert re.search(r"mean +peak", ended.stdout) is None  # MFU stands between them
    assert re.search(r"idle +MFU +peak", ended.stdout)
    page = html.read_text()
    assert '"mean idle %", "MFU %", "peak GB", "tokens per s"' in page
    found = json.loads(synth("compare", NAME, *size, *only, "--format", "json").stdout)
    # 72·B·s·l·h²·(1 + s/6h) per micro-batch; A100s, 312 TFLOP/s.
    flops = 72 * 6 * 1024 * 22 * 2304**2 * (1 + 1024 / (6 * 2304))
    for row in found["schedules"]:
        expected = 24 * flops / (row["makespan_us"] / 1e6) / 8 / 312e12
        assert row["mfu"] == pytest.approx(expected, rel=1e-9)


@pytest.mark.usefixtures("kept_workers")
def test_frontier_has_it_for_every_point(synth: Synth, counted: Path, tmp_path: Path) -> None:
    layer = LayerTimes(
        name="block", count=4, forward_us=1000, backward_us=2000, forward_flops=2 * 10**9,
        saved_bytes=10**6, output_bytes=10**5,
    )  # fmt: skip
    Profile.from_times("mine", [layer], peak_flops_per_s=8e12).save(counted)
    curve = ("frontier", counted, *SIZE, "--points", "2", "--time-limit", "30s", "--jobs", "1")
    ended = synth(*curve, "-o", tmp_path / "c.json", "--html", tmp_path / "c.html")
    assert "MFU" in ended.stdout, ended.stderr
    page = (tmp_path / "c.html").read_text()
    assert '"MFU, %", "tokens, per s"' in page
    assert page.count('"reason": "memory') + page.count('"reason": "no memory limit') >= 1
    found = json.loads(synth(*curve, "-o", tmp_path / "c.json", "--format", "json").stdout)
    for point in found["points"]:
        expected = RANK_FLOPS / (point["value_us"] / 1e6) / 8e12
        assert point["mfu"] == pytest.approx(expected)


@pytest.mark.parametrize("command", ["solve", "compare", "frontier"])
def test_a_peak_that_is_no_rate_is_refused(synth: Synth, command: str, tmp_path: Path) -> None:
    output = ("-o", tmp_path / "out.json") if command == "frontier" else ()
    ended = synth(command, NAME, *SIZE, *output, "--peak-flops", "989T")
    assert (ended.code, ended.stdout) == (2, "")
    assert "FLOP/s '989T' are not understood; write for example 989e12" in ended.stderr
