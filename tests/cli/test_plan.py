"""`synth plan`: the answer, JSON, the plan file, and the options of other programs."""

import json
import shlex
from pathlib import Path

import pytest

import synth as library
from synth.schedule.files.plan_file import Plan
from tests.cli.conftest import Synth

MODEL = {
    "model_type": "llama",
    **{"hidden_size": 512, "num_hidden_layers": 6, "num_attention_heads": 4},
    **{"num_key_value_heads": 4, "intermediate_size": 1536, "vocab_size": 8192},
}
SIZES = ("--device", "h100", "--gpus", "4", "--global-batch", "4", "--seq-len", "1024")
QUICK = ("--time-limit", "5s", "--workers", "1")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "small.json"
    path.write_text(json.dumps(MODEL))
    return path


@pytest.mark.slow
def test_the_answer_names_the_layout_its_distance_and_commands(synth: Synth, model: Path) -> None:
    also = "pp=2,dp=2,schedule=1f1b"
    ended = synth("plan", model, *SIZES, *QUICK, "--for", "megatron", "--also", also)
    assert ended.code == 0, ended.stderr
    for words in (
        "estimated, not measured",
        "no legal layout takes less than",
        "tokens/s per device",
        f"* {also}: +",
        "synth estimate",
        "--tensor-model-parallel-size",
    ):
        assert words in ended.stdout


@pytest.mark.slow
def test_json_has_the_layout_of_the_plan_file(synth: Synth, model: Path, tmp_path: Path) -> None:
    output = tmp_path / "plan.json"
    options = ("-o", output, "--format", "json")
    ended = synth("plan", model, *SIZES, *QUICK, "--for", "torchtitan", *options)
    assert ended.code == 0, ended.stderr
    data, plan = json.loads(ended.stdout), Plan.load(output)
    best = data["best"]
    assert (plan.num_ranks, plan.num_micro_batches) == (best["pp"], best["micro_batches"])
    assert best["tp"] * best["cp"] * best["dp"] * best["pp"] == 4
    assert data["bound_us"] <= best["step_us"] == pytest.approx(sum(best["parts_us"].values()))
    titan = next(each["text"] for each in data["commands"] if each["for"] == "torchtitan")
    assert (f"pipeline_parallel_degree = {best['pp']}" in titan) == (best["pp"] > 1)
    assert f"tensor_parallel_degree = {best['tp']}" in titan


@pytest.mark.slow
def test_the_commands_of_the_answer_run(
    synth: Synth, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = synth("plan", model, *SIZES, *QUICK, "--format", "json")
    data = json.loads(ended.stdout)
    commands = {each["for"]: each["text"] for each in data["commands"]}
    assert ("solve" in commands) == (data["best"]["pp"] > 1)
    program, *words = shlex.split(commands["estimate"])
    ran = synth(*words)
    assert (program, ran.code) == ("synth", 0), ran.stderr
    assert data["interrupted"] is False
    assert data["runtime"] == "synth" and data["software"]["attention"]
    assert data["bounded"] == data["legal"] and data["mem_limit_bytes"] > 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--mem-limit", "1MB"), "comes closest, and its fullest rank needs at least"),
        (("--gpus", "12"), "do not fill nodes"),
        (("--also", "tp=3"), "heads"),
        (("--also", "pp=2,dp=1"), "devices"),
        (("--mem-limit", "min"), "synth solve"),
        (("--dtype", "fp4"), "no matrix products"),
        (("--time-limit", "1ms"), "the time limit of 1 ms was over before any of"),
    ],
)
def test_a_wrong_option_is_one_clear_line(
    synth: Synth, model: Path, options: tuple[str, ...], words: str
) -> None:
    ended = synth("plan", model, *SIZES, *QUICK, *options)
    assert ended.code != 0 and "Traceback" not in ended.stderr
    assert any(word in ended.stderr for word in words.split("|")), ended.stderr


@pytest.mark.slow
def test_python_has_the_same_answer(model: Path) -> None:
    answer = library.plan_layout(
        model, "h100", gpus=2, global_batch=2, seq_len=512, time_limit=2, workers=1
    )
    assert answer.best is not None and answer.gap is not None
    assert answer.best.layout.gpus == 2
    assert answer.best.plan.num_ranks == answer.best.layout.ranks
    with pytest.raises(library.SynthError, match="also"):
        library.plan_layout(model, "h100", gpus=2, global_batch=2, also=3)  # type: ignore[arg-type]
