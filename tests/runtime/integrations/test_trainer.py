"""`PipelineTrainer` logs what `transformers.Trainer` logs in one process."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh

import synth
from synth.errors import SynthError
from synth.families import generate
from synth.runtime.profiling.profile_model import profile_layers
from synth.schedule.files.plan_file import Plan
from tests.runtime.pretrained.tiny_models import batch, load, make

pytest.importorskip("transformers")
pytest.importorskip("accelerate")

IDS, TARGETS = batch(0)
NUM_SAMPLES, LENGTH, SIZE = 24, 8, 4


def samples() -> list[dict[str, Any]]:
    """Return sequences of one length, of which some labels are left out, as of padding."""
    draw = torch.Generator().manual_seed(3)
    found = []
    for number in range(NUM_SAMPLES):
        ids = torch.randint(64, (LENGTH,), generator=draw)
        labels = ids.clone()
        labels[: number % 5] = -100
        found.append({"input_ids": ids, "labels": labels})
    return found


def arguments(folder: Path, **changes: Any) -> Any:
    from transformers import TrainingArguments

    fields: dict[str, Any] = {
        "per_device_train_batch_size": SIZE,
        "per_device_eval_batch_size": SIZE,
        "learning_rate": 3e-3,
        "max_grad_norm": 0.5,
        "max_steps": 5,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        "seed": 5,
        "dataloader_pin_memory": False,
    }
    return TrainingArguments(output_dir=str(folder), **fields | changes)


def logged(trainer: Any) -> list[float]:
    """Return the loss, the norm and the learning rate of each step, one after the other."""
    steps = [each for each in trainer.state.log_history if "loss" in each]
    return [each[name] for each in steps for name in ("loss", "grad_norm", "learning_rate")]


def train(
    rank: int, world_size: int, text: str, folder: Path, changes: dict[str, Any], num: int
) -> tuple[list[float], float]:
    import os

    from accelerate.state import AcceleratorState, GradientState, PartialState

    from synth.integrations import PipelineTrainer

    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world_size), "LOCAL_RANK": str(rank)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    try:
        layers = synth.cut_model(make("llama"), IDS[:1], TARGETS[:1], check=False)
        size = (world_size // 2, 2)
        mesh = init_device_mesh("cpu", size, mesh_dim_names=("dp", "pp"))
        pipeline = synth.Pipeline(
            Plan.from_json(text), layers, group=mesh["pp"], data_parallel=mesh["dp"]
        )
        args = arguments(folder, ddp_backend="gloo", **changes)
        data = samples()[:num]
        trainer = PipelineTrainer(
            pipeline,
            args,
            replica=mesh["dp"].get_local_rank(),
            num_replicas=size[0],
            train_dataset=data,
            eval_dataset=data[:8],
        )
        trainer.train()
        loss = trainer.evaluate()["eval_loss"]
        trainer.save_model(str(folder / "trained"))
        return logged(trainer), loss
    finally:
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
            del os.environ[name]
        for state in (AcceleratorState, GradientState, PartialState):
            state._reset_state()


@pytest.mark.parametrize(
    ("num_pipelines", "changes", "num"),
    [
        (1, {}, NUM_SAMPLES),
        (1, {"max_steps": 7}, NUM_SAMPLES - 2),  # the last two of an epoch are left out
        (1, {"gradient_accumulation_steps": 2, "max_grad_norm": 0}, NUM_SAMPLES),
        (2, {"max_steps": 3}, NUM_SAMPLES),
    ],
)
def test_the_log_is_that_of_a_trainer_in_one_process(
    num_pipelines: int, changes: dict[str, Any], num: int, pool: Any, tmp_path: Path
) -> None:
    from transformers import Trainer

    layers = synth.cut_model(make("llama"), IDS[:1], TARGETS[:1], check=False)
    profile = profile_layers(layers, IDS[:1], TARGETS[:1], warmup=0, iterations=1)
    plan = Plan.of(profile, [2, 3], generate("zb-h1", 2, SIZE))
    ours = pool.run(train, 2 * num_pipelines, plan.to_json(), tmp_path, changes, num)

    model, data = make("llama"), samples()[:num]
    whole = {"dataloader_drop_last": True} | {"per_device_train_batch_size": SIZE * num_pipelines}
    args = arguments(tmp_path, **changes | whole)
    alone = Trainer(model, args, train_dataset=data, eval_dataset=data[:8])
    alone.train()
    for log, loss in ours:
        assert log == pytest.approx(logged(alone), rel=1e-4)
        assert len(log) == 3 * args.max_steps and loss == pytest.approx(
            alone.evaluate()["eval_loss"], rel=1e-2
        )
    found = load("llama", tmp_path / "trained").state_dict()
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-2, atol=1e-3)


def test_checkpoints_of_the_trainer_are_refused(tmp_path: Path) -> None:
    from synth.integrations import PipelineTrainer

    with pytest.raises(SynthError, match='give save_strategy="no"'):
        PipelineTrainer(None, arguments(tmp_path, save_strategy="steps"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("bf16", True),
        ("label_smoothing_factor", 0.5),
        ("neftune_noise_alpha", 5.0),
        ("torch_compile", True),
        ("compute_loss_func", len),
        ("compute_metrics", len),
    ],
)
def test_what_the_steps_of_a_pipeline_do_not_have_is_refused(
    name: str, value: Any, tmp_path: Path
) -> None:
    from synth.integrations import PipelineTrainer

    is_keyword = name.startswith("compute")
    args = arguments(tmp_path)
    if not is_keyword:
        setattr(args, name, value)  # without what arguments do to the environment
    keywords: dict[str, Any] = {name: value} if is_keyword else {}
    with pytest.raises(SynthError, match=f"{name} is .*a pipeline's steps do not have it"):
        PipelineTrainer(None, args, **keywords)  # type: ignore[arg-type]
