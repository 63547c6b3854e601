"""Errors of `synth run` before any process starts: options that would do nothing or fail later."""

import math
import os
from pathlib import Path

import pytest

from synth.profile.workload import Workload
from tests.cli.conftest import TINY, Synth, make_run_plan
from tests.cli.forked_command import run_forked


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--min-lr", "1e-5"), "--min-lr 1e-05 needs a learning rate that falls"),
        (("--min-lr", "1", "--schedule", "cosine"), "--min-lr 1.0 is above --lr 0.001"),
        (("--checkpoint-every", "5"), "--checkpoint-every 5 needs checkpoints; give --checkpoint"),
        (("--checkpoint-keep", "0"), "--checkpoint-keep 0 needs checkpoints; give --checkpoint"),
        (("--resume",), "--resume needs to know from where; give --checkpoint FOLDER"),
        (
            ("--resume-from", "5"),
            "--resume-from needs to know from where; give --checkpoint FOLDER",
        ),
        (("--resume-from", "-5"), "--resume-from '-5' is not understood; give the step"),
        (("--resume-from", "best"), "--resume-from 'best' is not understood; give the step"),
        (("--ignore-data",), "--ignore-data is for going on; give --resume, or leave it out"),
        (("--ignore-optimizer",), "--ignore-optimizer is for going on; give --resume"),
        (("--restarts", "1"), "--restarts continues from checkpoints; give --checkpoint FOLDER"),
        (("--look-ahead", "1", "--html", "t.html"), "t.html would compare the run with the order"),
        (
            ("--lr-rescheduling", "100", "--async-nesterov"),
            "--lr-rescheduling 100, --async-nesterov: for late gradients, and plan",
        ),
        (("--weight-prediction",), "flushes the pipeline before each update, so that none is late"),
        (("--trace-every", "1"), "--trace-every 1 needs a trace; give --trace FILE"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_an_option_that_would_be_left_unheard_is_refused(
    synth: Synth, run_plan: Path, text: Path, options: tuple[str, ...], message: str
) -> None:
    ended = synth("run", run_plan, "--data", text, *options)
    assert (ended.code, ended.stdout) == (2, "")
    assert message in ended.stderr
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("emulate", "--timeout"),
        ("run", "--timeout"),
        ("run", "--patience"),
        ("run", "--lr"),
        ("run", "--clip"),
        ("run", "--min-lr"),
        ("run", "--weight-decay"),
    ],
)
@pytest.mark.parametrize("value", ["nan", "inf", "1e31"])
def test_a_number_that_is_none_or_beyond_all_measure_is_refused(
    synth: Synth, run_plan: Path, text: Path, command: str, option: str, value: str
) -> None:
    data = ("--data", text) if command == "run" else ()
    ended = synth(command, run_plan, *data, option, value)
    assert (ended.code, ended.stdout) == (2, "")
    assert option in ended.stderr
    if option in ("--timeout", "--patience"):
        is_finite = math.isfinite(float(value))
        reason = "604800" if is_finite else f"{option} {value} is no finite number"
        assert reason in ended.stderr


def test_an_interface_that_is_not_there_is_refused_by_its_name(text: Path, tmp_path: Path) -> None:
    workload = Workload(model="gpt", arguments=TINY, micro_batch_size=2, sequence_length=32)
    plan = make_run_plan(workload, (3, 3), tmp_path)
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "nosuch0"}
    ended = run_forked("run", plan, "--data", text, "--device", "cpu", env=environment)
    assert ended.returncode == 2
    assert "error: GLOO_SOCKET_IFNAME names 'nosuch0', and " in ended.stderr
    assert "it has " in ended.stderr and "Traceback" not in ended.stderr
