"""`synth solve --for` and `--offload`: the schedules with which it may answer."""

import json
import re
from pathlib import Path

import pytest

from synth.layer_times import LayerTimes
from synth.profile import Profile
from synth.profile.links import Link
from synth.profile.model_parts import model_parts
from synth.profiles import find
from synth.schedule.files.plan_file import Plan
from synth.schedule.recomputation_rules import MEGATRON, TORCHTITAN, RecomputationMenu
from tests.cli.conftest import NAME, Synth

SIZE = ("solve", NAME, "--ranks", "4", "--micro-batches", "8", "--partition", "even")
# Less than 1F1B takes (36.8 GB), and enough for it if some layers recompute.
TIGHT = (*SIZE, "--mem-limit", "24GB", "--time-limit", "3s")


def solved(synth: Synth, path: Path, *more: str) -> Plan:
    ended = synth(*TIGHT, *more, "-o", path)
    assert ended.code == 0, ended.stderr
    return Plan.load(path)


def test_by_default_no_plan_offloads_or_holds_two_copies(synth: Synth, tmp_path: Path) -> None:
    plan = solved(synth, tmp_path / "plan.json", "--time-limit", "1s")
    assert len(plan.placement) == 1
    kinds = {str(op.kind) for program in plan.schedule().programs for op in program}
    assert kinds <= {"F", "B", "W", "BW", "R", "STEP"}


@pytest.mark.parametrize("runtime", ["torch", "torchtitan", "megatron"])
def test_a_plan_for_a_runtime_is_exported_to_it(synth: Synth, tmp_path: Path, runtime: str) -> None:
    counted = ("--deterministic", "--time-limit", "1s")  # so that a busy machine searches as much
    plan = solved(synth, tmp_path / "plan.json", "--for", runtime, *counted)
    assert plan.arguments["for"] == runtime
    kinds = {str(op.kind) for program in plan.schedule().programs for op in program}
    assert kinds <= {"F", "B", "W", "BW", "STEP"}
    output = tmp_path / {"torch": "plan.csv", "torchtitan": "plan.toml"}.get(runtime, "plan.txt")
    exported = synth("export", tmp_path / "plan.json", "--to", runtime, "-o", output)
    assert exported.code == 0, exported.stderr


def test_only_placements_of_the_runtime_are_searched(synth: Synth) -> None:
    ended = synth(*SIZE, "--for", "torchtitan", "--dry-run", "--format", "json")
    names = [each["name"] for each in json.loads(ended.stdout)["candidates"]]
    assert names == ["linear", "looped:2", "v", "looped:3", "looped:4", "looped:6"][: len(names)]
    assert {"linear", "looped:2", "v"} <= set(names)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--placement", "bidirectional"), "torch holds one copy of each stage, not 2"),
        (("--recompute", "all"), "ops R, which torch does not have; give layers"),
        (("--recompute", "0,1", "--placement", "linear"), "ops R, which torch does not have"),
        (("--offload",), "--offload and --for torch do not go together"),
        (("--weights", "ring"), "--weights ring and --for torch do not go together"),
        (("--data-parallel", "2"), "--data-parallel 2 and --for torch do not go together"),
        (("--versions", "2bw"), "--versions 2bw and --for torch do not go together"),
    ],
)
def test_what_the_runtime_cannot_run_is_refused(
    synth: Synth, more: tuple[str, ...], words: str
) -> None:
    ended = synth(*SIZE, "--for", "torch", *more)
    assert (ended.code, ended.stdout) == (2, "")
    assert words in ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("runtime", "menu"), [("torchtitan", TORCHTITAN), ("megatron", MEGATRON)])
def test_layers_are_recomputed_by_a_rule_of_the_runtime_and_the_bound_is_proven_again(
    synth: Synth, tmp_path: Path, runtime: str, menu: RecomputationMenu
) -> None:
    path = tmp_path / "plan.json"
    plan = solved(synth, path, "--for", runtime, "--placement", "linear")
    choices = menu.choices(plan.partition, plan.placed, model_parts(plan.layers))
    assert plan.recomputed_layers and plan.recomputed_layers in choices
    ended = synth("check", path, "--profile", NAME, "--prove")
    assert ended.code == 0, ended.stdout
    assert f"whichever of {runtime}'s rules recomputes layers" in ended.stdout


@pytest.mark.slow
def test_no_published_schedule_that_the_runtime_runs_is_faster(
    synth: Synth, tmp_path: Path
) -> None:
    # Effort is counted, so that a busy machine searches as much.
    counted = ("--deterministic", "--time-limit", "3s")
    given = ("--for", "torchtitan", "--partition", "auto", *counted)
    plan = solved(synth, tmp_path / "plan.json", *given)
    names = [f"--only={name}" for name in ("1f1b", "zb-h1", "interleaved:2", "zb-v", "v-half")]
    limits = ("--mem-limit", "24GB", "--time-limit", "20s", "--format", "json")
    ended = synth("compare", *SIZE[1:6], *limits, *names, "--for", "torchtitan", "--no-solve")
    rows = [row for row in json.loads(ended.stdout)["schedules"] if row["fits"]]
    assert any(row["recomputed_layers"] for row in rows)
    assert plan.claim.makespan_us <= min(row["makespan_us"] for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("runtime", "left_out"),
    [("torch", "recompute|bpipe"), ("megatron", "recompute|bpipe|zb-|gpipe|gis|v-")],
)
def test_the_table_has_only_schedules_that_the_runtime_runs(
    synth: Synth, runtime: str, left_out: str
) -> None:
    ended = synth(*TIGHT, "--placement", "linear", "--for", runtime, "--format", "json")
    names = [rival["name"] for rival in json.loads(ended.stdout)["rivals"]]
    assert "1f1b" in names
    assert not [name for name in names if re.search(left_out, name)]


@pytest.mark.slow
def test_compare_chooses_layers_for_a_runtime_that_recomputes_no_stages(synth: Synth) -> None:
    ended = synth(
        "compare", *SIZE[1:6], "--for", "torch", "--mem-limit", "13GB", "--time-limit", "3s",
        "--placement", "auto", "--only", "1f1b", "--format", "json",
    )  # fmt: skip
    assert ended.code == 0, ended.stderr
    rows = {row["name"]: row for row in json.loads(ended.stdout)["schedules"]}
    assert rows["solved auto"]["fits"]


@pytest.mark.parametrize("runtime", ["torchtitan", "megatron"])
@pytest.mark.parametrize(
    ("limit", "words"), [("1MB", "every rank fits"), ("1KB", "no schedule fits")]
)
def test_a_model_without_decoder_layers_has_no_layers_to_recompute(
    synth: Synth, tmp_path: Path, runtime: str, limit: str, words: str
) -> None:
    ends = [
        LayerTimes(name=name, forward_us=10, backward_us=20, parameter_bytes=1000)
        for name in ("embedding", "head")
    ]
    path = tmp_path / "ends.json"
    Profile.from_times("ends", ends).save(path)
    size = ("--ranks", "2", "--micro-batches", "2", "--mem-limit", limit)
    ended = synth("solve", path, *size, "--for", runtime, "--dry-run")
    assert words in ended.stdout + ended.stderr
    is_known = (runtime, limit) == ("torchtitan", "1MB")
    assert ("feasible: every" in ended.stdout) == is_known


@pytest.mark.slow
@pytest.mark.parametrize(("runtime", "layers"), [("torch", "layers:all"), ("torchtitan", "auto")])
def test_recomputation_that_the_runtime_can_run_is_suggested(
    synth: Synth, runtime: str, layers: str
) -> None:
    given = ("--placement", "linear", "--recompute", "none", "--for", runtime)
    ended = synth(*SIZE, *given, "--mem-limit", "20GB", "--time-limit", "1s")
    assert f"give --recompute {layers}, which {runtime} can run" in ended.stdout


def test_what_other_orders_would_gain_is_told(synth: Synth) -> None:
    ended = synth(*SIZE, "--mem-limit", "40GB", "--for", "megatron", "--recompute", "none")
    assert ended.code == 0
    assert "but megatron cannot run it; give --placement" in ended.stdout
    assert "the lower bound holds for every order, also for those that megatron cannot run" in (
        " ".join(ended.stdout.split())
    )


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--hint", "zb-h1"), "--hint zb-h1 and --for megatron do not go together"),
        (("--mem-limit", "min", "--target", "2s"), "--target 2s and --for megatron do not go"),
        (("--placement", "v"), "Megatron-LM places stages as linear or looped:N"),
    ],
)
def test_megatron_takes_no_order(synth: Synth, more: tuple[str, ...], words: str) -> None:
    ended = synth(*SIZE, "--for", "megatron", *more)
    assert (ended.code, ended.stdout) == (2, "")
    assert words in ended.stderr


def test_the_solved_row_of_a_comparison_is_of_the_runtime_too(synth: Synth) -> None:
    rows = ("--only", "zb-h1", "--placement", "linear", "--mem-limit", "40GB")
    ended = synth("compare", *SIZE[1:], "--for", "megatron", *rows, "--format", "json")
    solved_row = next(
        row for row in json.loads(ended.stdout)["schedules"] if row["name"] == "solved linear"
    )
    one = synth("compare", *SIZE[1:], "--no-solve", "--only", "1f1b", *rows[4:], "--format", "json")
    assert solved_row["makespan_us"] == json.loads(one.stdout)["schedules"][0]["makespan_us"]


def test_torchtitan_has_no_wave_of_four_stages(synth: Synth) -> None:
    ended = synth(*SIZE, "--for", "torchtitan", "--placement", "wave:2")
    assert ended.code == 2
    assert "torchtitan places stages as linear, looped:N or v" in ended.stderr


def test_layers_that_b_recomputes_are_for_every_runtime(synth: Synth) -> None:
    layers = ("--placement", "linear", "--recompute", "layers:all", "--time-limit", "500ms")
    assert synth(*SIZE, "--for", "torch", *layers).code == 0


def test_the_answer_says_what_a_placement_that_is_left_out_would_gain(synth: Synth) -> None:
    # 2 micro-batches on 8 ranks: Chimera's two directions halve the pipeline's filling.
    few = ("solve", NAME, "--ranks", "8", "--micro-batches", "2", "--partition", "even")
    ended = synth(*few, "--time-limit", "2s")
    assert ended.code == 0
    assert "on a placement that was not searched; give --placement bidirectional" in ended.stdout


def test_offloading_is_taken_where_it_is_asked_for(synth: Synth, tmp_path: Path) -> None:
    linear = ("--placement", "linear", "--mem-limit", "14GB", "--time-limit", "6s")
    without = synth(*TIGHT, *linear, "-o", tmp_path / "without.json")
    allowed = synth(*TIGHT, *linear, "--offload", "-o", tmp_path / "with.json")
    plans = [Plan.load(tmp_path / f"{name}.json") for name in ("without", "with")]
    # Both searches end by the clock.
    assert plans[1].claim.makespan_us <= 1.02 * plans[0].claim.makespan_us
    if "allow it with --offload" in without.stdout:
        assert plans[1].claim.makespan_us < plans[0].claim.makespan_us, allowed.stdout


@pytest.mark.parametrize(
    ("more", "are_tried"), [(("--offload",), True), ((), False)], ids=["offload", "default"]
)
def test_finer_placements_are_tried_with_offloads_to_the_host(
    synth: Synth, tmp_path: Path, more: tuple[str, ...], *, are_tried: bool
) -> None:
    profile, path = Profile.load(find(NAME)), tmp_path / "host.json"
    host = Link(latency_us=10, bandwidth_bytes_per_s=100e9)
    profile.replace(links=profile.links.replace(host=host)).save(path)
    size = ("--ranks", "4", "--micro-batches", "8", "--mem-limit", "24GB", "--recompute", "none")
    ended = synth("solve", path, *size, "--time-limit", "1s", *more, "-o", tmp_path / "plan.json")
    assert ended.code == 0, ended.stderr
    assert ("looped:5; looped:6" in ended.stderr) == are_tried
    published = synth(
        *("compare", path, *size[:6], "--no-solve", "--format", "json"),
        *("--only", "pipeoffload:2", "--only", "pipeoffload:2,full,uniform"),
    )
    rows = json.loads(published.stdout)["schedules"]
    best_us = min(row["makespan_us"] for row in rows if row["fits"])
    assert (Plan.load(tmp_path / "plan.json").claim.makespan_us <= best_us) or not are_tried


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--recompute", "all", "--placement", "linear"), "ops R, which torch does not have"),
        (("--weights", "ring"), "--weights ring and --for torch do not go together"),
        (("--versions", "2bw"), "--versions 2bw and --for torch do not go together"),
    ],
)
def test_rows_of_a_comparison_that_the_runtime_cannot_run_are_refused(
    synth: Synth, more: tuple[str, ...], words: str
) -> None:
    ended = synth("compare", *SIZE[1:], "--for", "torch", *more)
    assert (ended.code, ended.stdout) == (2, "")
    assert words in ended.stderr


def test_a_comparison_says_why_a_placement_is_not_searched_for_a_runtime(synth: Synth) -> None:
    rows = ("--only", "1f1b", "--placement", "bidirectional", "--time-limit", "2s")
    ended = synth("compare", *SIZE[1:], "--for", "torch", *rows)
    assert ended.code == 0
    assert "torch holds one copy of each stage, not 2" in ended.stdout
