"""Jobs as newcomers have them, from measuring to training: each loss is that of one process.

Each model is a file that knows nothing of the pipeline, but that it is a list of layers. It is
profiled, planned for 2 ranks, trained by `synth run`, and by PyTorch's own pipelining runtime.
"""

import importlib
import json
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from tests.cli.conftest import Synth

MODELS = ("llama_complex:layers", "hf:llama", "dit:layers", "hf:mixtral", "lora:layers")
STEPS, MICRO_BATCHES, LEARNING_RATE, SEED = 3, 4, 0.05, 7


def losses_of_one_process(model: ModuleType, layers: list[nn.Module]) -> list[float]:
    """Train all layers in this process: the mean loss of the micro-batches of each step."""
    optimizer = torch.optim.SGD([p for x in layers for p in x.parameters()], LEARNING_RATE)
    found = []
    for step in range(STEPS):
        total = torch.zeros(())
        for number in range(step * MICRO_BATCHES, (step + 1) * MICRO_BATCHES):
            value, targets = model.batch(number)
            for layer in layers[:-1]:
                value = layer(*value) if isinstance(value, tuple) else layer(value)
            value = value if isinstance(value, tuple) else (value,)
            loss = layers[-1](*value, targets) / MICRO_BATCHES
            loss.backward()
            total += loss.detach()
        found.append(float(total))
        optimizer.step()
        optimizer.zero_grad()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_a_newcomers_job(synth: Synth, tmp_path: Path, name: str) -> None:
    module, function = name.split(":")
    model = importlib.import_module(f"tests.cli.jobs.{module}")
    file, profile, plan = (
        Path(str(model.__file__)),
        tmp_path / "profile.json",
        tmp_path / "plan.json",
    )
    own = ("--inputs", f"{file}:batch", "--device", "cpu", "--optimizer", "sgd")
    measured = synth(
        "profile", f"{file}:{function}", *own, "--ranks", 2, "--iters", 2, "-o", profile
    )
    assert measured.code == 0, measured.stderr
    size = ("--ranks", "2", "--micro-batches", MICRO_BATCHES, "--time-limit", "5s")
    solved = synth("solve", profile, *size, "--for", "torch", "-o", plan)
    assert solved.code == 0, solved.stderr
    output = tmp_path / "run.json"
    rate = (
        "--steps",
        STEPS,
        "--lr",
        LEARNING_RATE,
        "--seed",
        SEED,
        "--weight-decay",
        0,
        "--clip",
        1e9,
    )
    ran = synth("run", plan, "--model", f"{file}:{function}", *own, *rate, "-o", output)
    assert ran.code == 0, ran.stderr
    run = json.loads(output.read_text())
    torch.manual_seed(SEED)
    losses = losses_of_one_process(model, getattr(model, function)())
    assert run["losses"] == pytest.approx(losses, rel=1e-5)
    peaks = run["comparison"]
    for planned, seen in zip(
        peaks["predicted_peak_bytes"], peaks["measured_peak_bytes"], strict=True
    ):
        assert seen == pytest.approx(planned, rel=0.01)
