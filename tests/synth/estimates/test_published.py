"""Published runs as their sources describe them, beside their estimates."""

import json
from pathlib import Path
from statistics import median

import pytest

from benchmarks import estimates
from synth.estimates.layout import Recompute, Sharding
from synth.estimates.published import PublishedRun, published_runs

RECORDED = Path(estimates.__file__).with_name("results") / "estimates.json"
KEYS = ("stack", "device", "models")


def run_of_row(number: int) -> PublishedRun:
    return next(run for run in published_runs() if run.name.split()[0] == str(number))


@pytest.mark.parametrize("number", [256, 257, 259, 260])
def test_peaks_of_megatrons_own_tests_are_within_6_percent(number: int) -> None:
    """With dropout, and of 259 and 260 without sequence parallelism, as their configs say."""
    run = run_of_row(number)
    assert run.peak_bytes is not None and run.step.estimator.shape.dropout
    assert max(run.step.peaks_bytes()) == pytest.approx(run.peak_bytes, rel=0.06)


@pytest.mark.slow
@pytest.mark.parametrize(("stack", "device"), [("nemo", "gb200"), ("mlperf", "h100")])
def test_the_recorded_errors_are_those_of_this_model(
    stack: str, device: str, tmp_path: Path
) -> None:
    """A table that is older than what it describes says what is no longer true."""
    found = tmp_path / "found.json"
    estimates.main(["--stack", stack, "--device", device, "--json", str(found)])
    rows = json.loads(found.read_text())["rows"]
    recorded = json.loads(RECORDED.read_text())["rows"]
    assert rows
    for row in rows:
        known = next(one for one in recorded if all(one[key] == row[key] for key in KEYS))
        assert known.keys() == row.keys()
        for key, value in row.items():
            is_number = isinstance(value, float)
            assert known[key] == (pytest.approx(value, rel=1e-3) if is_number else value)


def test_torchtitans_defaults_explain_its_two_schedules() -> None:
    """As many micro-batches as ranks: interleaved 1F1B was 1.28 times as fast."""
    plain, interleaved = run_of_row(161), run_of_row(162)
    assert plain.step.micro_batches == interleaved.step.micro_batches == 8
    measured = plain.measured_us / interleaved.measured_us
    assert plain.step.us() / interleaved.step.us() == pytest.approx(measured, rel=0.06)


def test_500_watts_explain_torchtitans_steps_without_a_fit() -> None:
    runs = [run for run in published_runs() if run.device == "h100-500w"]
    assert len(runs) == 24
    assert median(abs(run.step.us() / run.measured_us - 1) for run in runs) < 0.12


def test_layouts_that_would_not_fit_have_what_lets_them() -> None:
    assert run_of_row(60).step.estimator.layout.sharding is Sharding.FSDP
    assert run_of_row(121).step.estimator.layout.recompute is Recompute.FULL


def test_releases_and_recipes_of_precision_are_told_apart() -> None:
    assert run_of_row(20).variant == "FP8, NeMo 26.06"
    assert run_of_row(21).variant == "MXFP8, NeMo 26.06"


def test_recipes_say_how_experts_tokens_are_exchanged() -> None:
    """Those of Megatron-Bridge and AutoModel beside their tables."""
    for row, once, hidden in ((54, False, 0.33), (53, False, 0.0), (1, True, 0.33), (9, True, 0.0)):
        software = run_of_row(row).step.estimator.software
        assert (software.sends_once, software.hidden_experts) == (once, hidden)
    assert run_of_row(45).step.estimator.software.host_us == 0  # CUDA graphs
    assert run_of_row(53).step.estimator.software.host_us > 0
    shown = [run_of_row(row).step.estimator.software.shown_launches for row in (203, 200)]
    assert shown[0] > shown[1] == 0  # only `alltoall` waits on the host


def test_layers_of_multi_token_prediction_are_those_that_a_run_trains() -> None:
    assert [run_of_row(row).step.estimator.shape.mtp_layers for row in (75, 89, 117)] == [0, 1, 0]


def test_automodels_recipes_explain_its_steps_without_a_fit() -> None:
    """GPT-OSS shares experts between 64 ranks; pipelines are interleaved and recompute all."""
    runs = [run for run in published_runs() if run.stack == "automodel" and not run.dense]
    assert len(runs) == 5
    assert run_of_row(120).step.estimator.layout.expert == 64
    assert median(abs(run.step.us() / run.measured_us - 1) for run in runs) < 0.1


def test_the_notes_count_the_runs_and_their_sources() -> None:
    notes = (Path(__file__).resolve().parents[3] / "notes" / "estimates.md").read_text("utf-8")
    runs = published_runs()
    sources = len({run.stack for run in runs})
    assert f"steps that {sources} sources have published: {len(runs)} runs," in notes


def test_asynchronous_tensor_parallelism_gains_as_much_as_measured() -> None:
    """Pairs of runs that differ in it alone gain 5 to 10 %."""
    for without, beside in ((173, 174), (175, 176), (159, 160)):
        runs = run_of_row(without), run_of_row(beside)
        estimated = runs[0].step.us() / runs[1].step.us()
        assert estimated == pytest.approx(runs[0].measured_us / runs[1].measured_us, abs=0.02)
