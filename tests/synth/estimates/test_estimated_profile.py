"""Estimated profiles: marked so, ordinary otherwise, and in line with published steps."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import synth
from synth.costs.partition_costs import partition_costs
from synth.errors import SynthError
from synth.estimates.calibrate import calibrate, representative, runs_of, unread_columns
from synth.estimates.calibration import Calibration
from synth.estimates.factors import PRIOR, Factors
from synth.estimates.fit import StepParts, fit
from synth.estimates.named import estimated, is_named, usual_names
from synth.estimates.outside_pipeline import update_us
from synth.estimates.published import PublishedRun, published_runs, run_of
from synth.op_kinds import OpKind
from synth.profile import Profile
from synth.profiles import load


def work_us(profile: Profile) -> float:
    return sum(profile.layer_profile(place).work_us() for place in range(len(profile.layers)))


def made(options: dict[str, Any]) -> Profile:
    return synth.estimate(device="h100", **options)


def test_it_is_marked_wherever_its_device_is_shown(tmp_path: Path) -> None:
    profile = synth.estimate("llama3-8b", "h100", tp=2, calibration="none")
    assert profile.provenance.device == "NVIDIA H100 SXM 80GB (estimated)"
    assert profile.provenance.estimate is not None
    assert "estimated, not measured" in profile.provenance.estimate.words
    assert "not calibrated" in profile.provenance.estimate.words
    plan = synth.simulate("1f1b", profile, ranks=4, micro_batches=8)
    assert plan.device.endswith("(estimated)")
    path = tmp_path / "profile.json"
    profile.save(path)
    assert Profile.load(path) == profile


def test_a_measured_profile_reads_as_before() -> None:
    assert "estimate" not in load("zb-1.5b-p8-m24").to_data()["provenance"]


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_passes_that_the_hosts_launches_bind_are_named(recompute: str) -> None:
    options = {"tp": 4, "ep": 8, "recompute": recompute}
    launched = made({"model": "qwen3-235b-a22b", **options}).provenance.estimate
    assert launched is not None and launched.launch_bound == {"moe_block": ("F", "B", "W")}
    assert launched.words.endswith(
        "; F, B, W of moe_block take as long as the host launches their kernels"
    )
    for other in (
        {"model": "qwen3-235b-a22b", "software": "megatron-graphs"},
        {"model": "llama3-8b"},
    ):
        estimate = made(other).provenance.estimate
        assert estimate is not None and not estimate.launch_bound


def test_tensor_parallelism_shares_work_and_bytes() -> None:
    one, eight = (synth.estimate("llama3-70b", "h100", tp=tp, seq_len=8192) for tp in (1, 8))
    assert work_us(one) / 8 < work_us(eight) < work_us(one) / 4
    first, second = (each.layer_profiles["block"] for each in (one, eight))
    assert second.parameter_bytes == pytest.approx(first.parameter_bytes / 8, rel=0.001)
    assert second.output_bytes == first.output_bytes / 8


@pytest.mark.parametrize("option", ["seq_len", "micro_batch_size"])
def test_more_tokens_take_longer(option: str) -> None:
    few, many = (made({"model": "llama3-8b", option: size}) for size in (1024, 2048))
    assert work_us(few) < work_us(many)


def test_full_recomputation_keeps_the_input_only_and_adds_a_forward_to_b() -> None:
    plain, again = (
        synth.estimate("llama3-8b", "h100", recompute=what).layer_profiles["block"]
        for what in ("none", "full")
    )
    assert again.saved_bytes == 0 < plain.saved_bytes
    forward = plain.time_us[OpKind.F].median_us
    added = again.time_us[OpKind.BW].median_us - plain.time_us[OpKind.BW].median_us
    assert added == pytest.approx(forward, rel=1e-6)


def test_narrow_products_are_faster_and_not_twice_as_fast() -> None:
    wide, narrow = (work_us(synth.estimate("llama3-70b", "h100", dtype=d)) for d in ("bf16", "fp8"))
    assert 1.2 < wide / narrow < 1.8


def test_a_tied_head_shares_its_parameters_with_the_embedding() -> None:
    profile = synth.estimate("gemma3-27b", "h200", tp=4)
    assert profile.tied_parameters is not None
    assert profile.tied_parameters[0].layers == ("embedding", "head")


def test_a_rank_with_embedding_and_head_updates_their_table_once() -> None:
    """The embedding is the table alone, so the head adds its norm to the update."""
    profile = synth.estimate("gemma3-27b", "h200", tp=4)
    assert profile.tied_parameters is not None
    embedding, *_, head = (
        profile.layer_profile(place).time_us[OpKind.STEP].median_us
        for place in range(len(profile.layers))
    )
    assert profile.tied_parameters[0].step_us == embedding < head
    count = len(profile.layers)
    each = [
        stage.duration_us[OpKind.STEP] for stage in partition_costs(profile, [1] * count).stages
    ]
    [whole] = partition_costs(profile, [count]).stages
    assert whole.duration_us[OpKind.STEP] == pytest.approx(sum(each) - embedding, abs=count)
    ends = [0, count - 1]
    assert update_us(profile, ends) == pytest.approx(head)
    assert update_us(profile, range(count)) == pytest.approx(sum(each) - embedding, abs=count)
    # Both ranks of a pipeline update it, and the two ends of a V do once.
    costs = partition_costs(profile, [1, count - 2, 1])
    assert [costs.step_us(s, [s]) for s in (0, 2)] == pytest.approx([embedding, head], abs=1)
    assert [costs.step_us(s, [0, 2]) for s in (0, 2)] == pytest.approx(
        [embedding, head - embedding], abs=2
    )


def test_every_usual_name_is_a_profile() -> None:
    names = list(usual_names())
    assert "llama3-70b-h100-tp8" in names and "deepseek-v3-h100-tp1-ep64" in names
    for name in names:
        assert is_named(name)
    for name in ("llama3-405b-h100-tp8", "mixtral-8x22b-b200-tp2-ep8", "qwen3-32b-a100-tp4"):
        assert estimated(name).name == name


def test_the_command_of_a_named_profile_makes_the_same() -> None:
    named = load("llama3-70b-h100-tp8")
    assert (
        named.provenance.command == "synth estimate llama3-70b --device h100 --tp 8 --seq-len 8192"
    )
    made = synth.estimate("llama3-70b", "h100", tp=8, seq_len=8192)
    assert made.layer_profiles == named.layer_profiles and made.links == named.links


def test_a_name_that_is_none_is_refused_with_an_example() -> None:
    with pytest.raises(SynthError, match="as llama3-70b-h100-tp8"):
        load("llama9-70b-h100-tp8")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tp": 3, "seq_len": 3072}, "64 heads, which 3 ranks"),
        ({"tp": 7}, "64 heads, which 7 ranks"),
        ({"cp": 3}, "cannot be shared equally by 3 ranks"),
        ({"ep": 8}, "has no experts"),
        ({"dtype": "fp16"}, "dtype='fp16' is not understood"),
        ({"software": "word"}, "software 'word' is not known"),
        ({"optimizer": "adam"}, "optimizer 'adam' is not understood"),
        ({"calibration": "missing.json"}, "missing.json"),
    ],
)
def test_what_does_not_go_together_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SynthError, match=message):
        made({"model": "llama3-70b", **options})


def test_steps_of_mlperf_are_within_a_tenth_without_calibration() -> None:
    runs = [run for run in published_runs() if run.stack == "mlperf" and run.device == "h100"]
    errors = {run.name: run.step.us() / run.measured_us - 1 for run in runs[3:]}
    assert len(errors) == 4 and max(map(abs, errors.values())) < 0.1


def test_peaks_of_simumax_are_within_a_twentieth() -> None:
    """Peaks of allocated memory on eight B200 (SimuMax's release notes)."""
    wanted = ("212", "213", "215", "216", "218", "251", "253")
    runs = [run for run in published_runs() if run.name.split()[0] in wanted]
    for run in runs:
        assert run.peak_bytes is not None
        assert max(run.step.peaks_bytes()) == pytest.approx(run.peak_bytes, rel=0.05)
    assert len(runs) == len(wanted)


def rows_of(stack: str, device: str) -> list[StepParts]:
    return [
        StepParts(run)
        for run in published_runs()
        if (run.stack, run.device) == (stack, device) and run.step.ranks == 1
    ]


def test_a_fit_finds_the_factors_that_made_its_rows() -> None:
    rows = rows_of("simumax", "b200")[:6]
    true = Factors((1.2, 1.1, 1.6))
    made = [StepParts(run_with_time(row, row.us(true))) for row in rows]
    found = fit(made)
    assert found.values[0] == pytest.approx(1.2, rel=0.05)
    assert found.values[2] == pytest.approx(1.6, rel=0.25)
    assert all(own <= before for own, before in zip(found.deviations, PRIOR, strict=True))
    assert max(abs(row.error(found)) for row in made) < 0.02


def run_with_time(row: StepParts, time_us: float) -> PublishedRun:
    return replace(row.run, measured_us=time_us)


def test_rows_are_chosen_by_their_parts_and_not_by_their_times() -> None:
    rows = rows_of("simumax", "b200")[:9]
    slower = [StepParts(run_with_time(row, 2 * row.run.measured_us)) for row in rows]
    chosen = [row.run.name for row in representative(rows, 3)]
    assert chosen == [row.run.name for row in representative(slower, 3)]
    assert len(set(chosen)) == 3


def test_a_calibration_file_makes_the_same_factors_again(tmp_path: Path) -> None:
    csv = tmp_path / "runs.csv"
    csv.write_text("model,seq,global_batch,gpus,tp,tokens_per_s_gpu\nllama3-8b,8192,16,8,1,9000\n")
    found = calibrate(runs_of(str(csv), "h100", "megatron", None), "h100", "megatron", "mine")
    assert abs(found.residuals[0].after) < abs(found.residuals[0].before)
    path = tmp_path / "calibration.json"
    found.save(path)
    assert Calibration.load(path) == found
    profile = synth.estimate("llama3-8b", "h100", calibration=str(path))
    assert profile.provenance.estimate is not None
    assert profile.provenance.estimate.calibration == "1 row of mine"
    with pytest.raises(SynthError, match="fitted to megatron on h100"):
        synth.estimate("llama3-8b", "b200", calibration=str(path))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"model": "llama3-8b"}, "lacks precision"),
        ({"tokens_per_s_gpu": "fast"}, "tokens_per_s_gpu 'fast'; a positive number"),
        ({"model": "nobody"}, "neither a config.json nor known"),
        ({"global_batch": "12"}, "global_batch 12, and micro_batch × dp is 8; give a multiple"),
        ({"tokens_per_s_gpu": "72000"}, "needs 3.242 PFLOP/s, .* at most 989.4 TFLOP/s"),
    ],
)
def test_a_wrong_row_is_refused_by_its_column(row: dict[str, str], message: str) -> None:
    given = {
        "model": "llama3-8b",
        "device": "h100",
        "seq": "8192",
        "global_batch": "16",
        "gpus": "8",
        "precision": "bf16",
        "tokens_per_s_gpu": "9000",
    } | row
    if "lacks" in message:
        del given["precision"]
    with pytest.raises(SynthError, match=message):
        run_of(given)


HEADER = "model, seq, global_batch, gpus, tokens_per_s_gpu"
VALUES = "llama3-8b, 8192, 16, 8, 9000"


def test_a_csv_may_have_blanks_and_notes(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(f"{HEADER}, tp, remark, device\n\n{VALUES}, 2, ours, H100\n{VALUES}, , ,\n")
    first, second = runs_of(str(path), "h100", "megatron", None)
    layouts = [run.step.estimator.layout for run in (first, second)]
    assert [(layout.tensor, layout.data) for layout in layouts] == [(2, 4), (1, 8)]
    assert unread_columns(path) == ["remark"]


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("device", "a100", "device 'a100', and --device is h100"),
        ("software", "torchtitan", "software 'torchtitan', and --software is megatron"),
        ("seq", "4096", "has the column seq twice"),
        ("tp", "2, 3", "7 values, and 6 columns"),
    ],
)
def test_a_csv_that_contradicts_itself_is_refused(
    column: str, value: str, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(f"{HEADER}, {column}\n{VALUES}, {value}\n")
    with pytest.raises(SynthError, match=message):
        runs_of(str(path), "h100", "megatron", None)


def test_a_device_of_ones_own_is_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "device.json"
    path.write_text(
        json.dumps(
            {
                "name": "mine",
                "title": "My accelerator",
                "peak_flops_per_s": {"bfloat16": 5e14},
                "memory_bytes": 64 * 10**9,
                "memory_bytes_per_s": 2e12,
                "link_bytes_per_s": 2e11,
                "nic_bytes_per_s": 2.5e10,
            }
        )
    )
    profile = synth.estimate("llama3-8b", str(path))
    assert profile.capacity_bytes == 64 * 10**9
    assert work_us(profile) > work_us(synth.estimate("llama3-8b", "h100", calibration="none"))
    path.write_text("{}")
    with pytest.raises(SynthError, match="is no device"):
        synth.estimate("llama3-8b", str(path))


def test_rows_with_experts_that_no_factors_explain_move_them_little() -> None:
    """As if steps with nearly the same shares of parts took 0.6, 1.6 and 1 times their estimate.

    Rows that agree on 1.3 are followed.
    """
    rows = [run for run in published_runs() if run.stack == "simumax" and not run.dense][:3]

    def fitted(*scales: float) -> Factors:
        runs = zip(rows, scales, strict=True)
        return fit([StepParts(replace(run, measured_us=run.step.us() * by)) for run, by in runs])

    assert fitted(0.6, 1.6, 1.0).values == pytest.approx((1, 1, 1), abs=0.05)
    assert fitted(1.3, 1.3, 1.3).values == pytest.approx((1.3, 1.15, 1.25), abs=0.1)
