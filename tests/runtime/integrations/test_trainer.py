"""`PipelineTrainer` logs what `transformers.Trainer` logs in one process."""

import shutil
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
EVALUATED = 10  # the last batch has two samples


def samples() -> list[dict[str, Any]]:
    """Return sequences of one length, of which some labels are left out, or all, as of padding."""
    draw = torch.Generator().manual_seed(3)
    found = []
    for number in range(NUM_SAMPLES):
        ids = torch.randint(64, (LENGTH,), generator=draw)
        labels = ids.clone()
        labels[: LENGTH if number % 8 == 1 else number % 5] = -100
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
        "warmup_steps": 2,
        "weight_decay": 0.1,
        "eval_strategy": "steps",
        "eval_steps": 3,
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
    losses = [each["eval_loss"] for each in trainer.state.log_history if "eval_loss" in each]
    names = ("loss", "grad_norm", "learning_rate")
    return [each[name] for each in steps for name in names] + losses


def train(
    rank: int,
    world_size: int,
    text: str,
    folder: Path,
    changes: dict[str, Any],
    num: int,
    resume: Path | None = None,
) -> list[float]:
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
            eval_dataset=data[:EVALUATED],
        )
        trainer.train(resume_from_checkpoint=None if resume is None else str(resume))
        trainer.save_model(str(folder / "trained"))
        return logged(trainer)
    finally:
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
            del os.environ[name]
        for state in (AcceleratorState, GradientState, PartialState):
            state._reset_state()


@pytest.mark.parametrize(
    ("num_pipelines", "changes", "num"),
    [
        (1, {"max_steps": 12, "lr_scheduler_type": "cosine"}, NUM_SAMPLES),
        (1, {"max_steps": 7}, NUM_SAMPLES - 2),  # the last two of an epoch are left out
        (1, {"gradient_accumulation_steps": 2, "max_grad_norm": 0}, NUM_SAMPLES),
        (2, {"max_steps": 3}, NUM_SAMPLES),
    ],
)
def test_the_log_is_that_of_a_trainer_in_one_process(
    num_pipelines: int, changes: dict[str, Any], num: int, pool: Any, tmp_path: Path
) -> None:
    from transformers import Trainer

    class WithWholeEvaluation(Trainer):
        """Evaluates the last batch, too, which training leaves out."""

        def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
            self.args.dataloader_drop_last = False
            return super().get_eval_dataloader(eval_dataset)

    layers = synth.cut_model(make("llama"), IDS[:1], TARGETS[:1], check=False)
    profile = profile_layers(layers, IDS[:1], TARGETS[:1], warmup=0, iterations=1)
    plan = Plan.of(profile, [2, 3], generate("zb-h1", 2, SIZE))
    ours = pool.run(train, 2 * num_pipelines, plan.to_json(), tmp_path, changes, num)

    model, data = make("llama"), samples()[:num]
    whole = {"dataloader_drop_last": True} | {"per_device_train_batch_size": SIZE * num_pipelines}
    args = arguments(tmp_path, **changes | whole)
    alone = WithWholeEvaluation(model, args, train_dataset=data, eval_dataset=data[:EVALUATED])
    alone.train()
    for log in ours:
        assert log == pytest.approx(logged(alone), rel=1e-5)
        assert len(log) == 3 * args.max_steps + -(-args.max_steps // args.eval_steps)
    found = load("llama", tmp_path / "trained").state_dict()
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-4, atol=1e-5)


SAVING: dict[str, Any] = {
    "max_steps": 12,
    "save_strategy": "steps",
    "save_steps": 3,
    "load_best_model_at_end": True,
    "metric_for_best_model": "loss",
    "lr_scheduler_type": "cosine",
}


@pytest.mark.slow
def test_a_resumed_run_and_the_best_model_are_those_of_a_trainer(pool: Any, tmp_path: Path) -> None:
    from transformers import Trainer

    layers = synth.cut_model(make("llama"), IDS[:1], TARGETS[:1], check=False)
    profile = profile_layers(layers, IDS[:1], TARGETS[:1], warmup=0, iterations=1)
    plan, other = (
        Plan.of(profile, sizes, generate(family, 2, SIZE)).to_json()
        for sizes, family in (([2, 3], "zb-h1"), ([3, 2], "1f1b"))
    )
    whole, num = tmp_path / "whole", NUM_SAMPLES
    log, _ = pool.run(train, 2, plan, whole, SAVING, num)
    model = make("llama")
    alone = Trainer(
        model,
        arguments(tmp_path / "alone", **SAVING),
        train_dataset=samples(),
        eval_dataset=samples()[:EVALUATED],
    )
    alone.train()
    assert log == pytest.approx(logged(alone), rel=1e-5)
    found = load("llama", whole / "trained").state_dict()  # of the best step
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-4, atol=1e-5)

    start = whole / "checkpoint-6"
    for text, exact in ((plan, True), (other, False)):
        left = tmp_path / "again" / "checkpoint-9" / ".weights"  # by a run that was killed there
        left.mkdir(parents=True, exist_ok=True)
        (left / "model.safetensors").touch()
        resumed, _ = pool.run(train, 2, text, tmp_path / "again", SAVING, num, start)
        assert resumed == (log if exact else pytest.approx(log, rel=1e-5))

    (start / "optimizer.pt").touch()
    shutil.rmtree(start / "pipeline")
    with pytest.raises(Exception, match="has the optimizer of a Trainer"):
        pool.run(train, 2, plan, tmp_path / "again", SAVING, num, start)
    (start / "pipeline").mkdir()
    with pytest.raises(Exception, match="has no complete optimizer"):
        pool.run(train, 2, plan, tmp_path / "again", SAVING, num, start)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("bf16", True),
        ("label_smoothing_factor", 0.5),
        ("neftune_noise_alpha", 5.0),
        ("torch_compile", True),
        ("compute_loss_func", len),
        ("compute_metrics", len),
        ("activation_checkpointing", True),
        ("auto_find_batch_size", True),
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


def test_tokens_behind_padding_are_refused_without_a_mask() -> None:
    from synth.integrations import PipelineTrainer

    mask, ids = torch.tensor([[1, 1, 0], [1, 1, 1]]), torch.ones(2, 3, dtype=torch.long)
    batch = {"input_ids": ids, "labels": ids, "attention_mask": mask}
    trainer = object.__new__(PipelineTrainer)
    assert trainer.batch_of(batch)[0] is ids
    with pytest.raises(SynthError, match="tokens follow padding"):
        trainer.batch_of(batch | {"attention_mask": mask.flip(1)})
