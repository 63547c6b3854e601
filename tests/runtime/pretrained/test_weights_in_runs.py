"""A run begins from a folder of Hugging Face, and its weights go back to one."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

from synth.families import generate
from synth.profile.optimizer import OptimizerSpec
from synth.profile.workload import Workload
from synth.run_options.checkpoint_options import CheckpointOptions
from synth.run_options.learning_rate import LearningRate
from synth.run_options.train_options import TrainOptions
from synth.run_options.weight_files import WeightFiles, WeightFormat
from synth.runtime.models.cut import Piece
from synth.runtime.profiling.profile_model import profile_model
from synth.runtime.training.trainer import RankTrainer
from synth.runtime.world import World
from synth.schedule.files.plan_file import Plan
from tests.runtime.pretrained.tiny_models import CONFIGS, batch, load, saved

pytest.importorskip("transformers")

CPU = torch.device("cpu")
STEPS, MICRO_BATCHES, RATE = 3, 4, 0.5
INPUTS = f"{Path(__file__).with_name('tiny_models.py')}:batch"


def plan_of(
    folder: Path, schedule: str = "zb-h1", *, dtype: str = "float32", sizes: tuple[int, ...] = ()
) -> Plan:
    workload = Workload(
        model=f"hf:{folder}",
        inputs=INPUTS,
        micro_batch_size=2,
        sequence_length=8,
        dtype=dtype,
        optimizer=OptimizerSpec.parse("sgd"),
    )
    profile = profile_model(workload, CPU, warmup=0, iterations=1)
    half = len(profile.layers) // 2
    sizes = sizes or (half, len(profile.layers) - half)
    return Plan.of(profile, sizes, generate(schedule, 2, MICRO_BATCHES))


def train(
    rank: int, world_size: int, text: str, options: TrainOptions
) -> tuple[list[float], dict[str, Tensor]]:
    """Train, and return the losses and this rank's weights by their names in the whole model."""
    plan = Plan.from_json(text)
    world = World(rank, world_size, CPU, "gloo", "here", 2)
    trainer = RankTrainer(plan, plan.check()[0], options, world)
    losses = trainer.train().losses
    found = {}
    for layer in trainer._layers_by_name().values():
        assert isinstance(layer, Piece)
        for name, tensor in layer.state_dict().items():
            found[layer.original_name(name)] = tensor.detach().clone()
    return losses, found


def options_of(plan: Plan, folder: Path, out: Path | None, **changes: Any) -> TrainOptions:
    fields: dict[str, Any] = {
        "steps": STEPS,
        "learning_rate": LearningRate(peak=RATE),
        "clip_norm": None,
        "weights": WeightFiles(weights_from=folder, export_weights=out),
    }
    return TrainOptions(model=plan.workload.model, inputs=INPUTS, **fields | changes)


def trained_alone(model: nn.Module, count: int = STEPS, copies: int = 1) -> list[float]:
    """Train the uncut model on the same batches."""
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    losses, share = [], MICRO_BATCHES * copies
    for step in range(count):
        total = 0.0
        for number in range(step * share, (step + 1) * share):
            inputs, targets = batch(number)
            logits = model(inputs, use_cache=False).logits
            loss = nn.functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
            (loss / share).backward()
            total += loss.item() / share
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
    return losses


@pytest.mark.parametrize("kind", CONFIGS)
def test_fine_tuned_weights_go_back_bit_for_bit(kind: str, pool: Any, tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    model = saved(kind, before, shard="20KB")  # several files with an index
    (before / "tokenizer.json").write_text("{}")
    assert len(list(before.glob("*.safetensors"))) > 2
    plan = plan_of(before)
    (losses, _), (_, _) = ended = pool.run(
        train, 2, plan.to_json(), options_of(plan, before, after)
    )

    found = load(kind, after).state_dict()
    for _, weights in ended:
        for name, tensor in weights.items():
            assert torch.equal(found[name], tensor), name
    assert {name for _, weights in ended for name in weights} == set(found)
    assert (after / "tokenizer.json").exists()

    assert losses == pytest.approx(trained_alone(model), rel=1e-4)
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("kind", "schedule", "sizes"),
    [
        ("gpt2", "chimera", (3, 2)),  # two copies of each stage
        ("gpt2", "interleaved:2", (2, 1, 1, 1)),
        ("gpt2", "zero3", (2, 3)),  # weights are sharded
        ("mixtral", "zero1", (2, 3)),
        ("llama", "weipipe", (2, 3)),
    ],
)
def test_weights_are_read_and_written_wherever_they_are_kept(
    kind: str, schedule: str, sizes: tuple[int, ...], pool: Any, tmp_path: Path
) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    model = saved(kind, before)
    plan = plan_of(before, schedule, sizes=sizes)
    pool.run(train, 2, plan.to_json(), options_of(plan, before, after))
    trained_alone(model)
    found = load(kind, after).state_dict()
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-3, atol=1e-4)


def test_two_pipelines_write_one_folder(pool: Any, tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    model = saved("llama", before)
    plan = plan_of(before, "1f1b")
    options = options_of(plan, before, after, data_parallel=2)
    pool.run(train, 4, plan.to_json(), options)
    trained_alone(model, copies=2)
    found = load("llama", after).state_dict()
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-3, atol=1e-4)


def test_master_weights_begin_as_the_file_has_them_and_bfloat16_goes_back(
    pool: Any, tmp_path: Path
) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    saved("llama", before)  # float32
    plan = plan_of(before, dtype="bfloat16")
    options = options_of(plan, before, after, optimizer=OptimizerSpec.parse("adamw+master"))
    ended = pool.run(train, 2, plan.to_json(), options)
    found = load("llama", after).state_dict()
    for _, weights in ended:
        for name, tensor in weights.items():
            assert tensor.dtype == torch.bfloat16
            assert torch.equal(found[name], tensor), name
    unmoved = options.replace(
        learning_rate=LearningRate(peak=1e-12),
        weights=WeightFiles(weights_from=before, export_weights=tmp_path / "same"),
        checkpoint=CheckpointOptions(folder=tmp_path / "saved"),
    )
    losses = pool.run(train, 2, plan.to_json(), unmoved)[0][0]
    expected = load("llama", before, dtype=torch.bfloat16)
    for name, tensor in load("llama", tmp_path / "same").state_dict().items():
        assert torch.equal(tensor, expected.state_dict()[name]), name
    assert losses[0] == pytest.approx(trained_alone(expected.train(), 1)[0], rel=1e-6)
    # The master copies have kept what bfloat16 cannot.
    master = saved_tensor(tmp_path / "saved" / "step-3", "model.lm_head.")
    wide = load("llama", before).state_dict()["lm_head.weight"]
    assert not torch.equal(wide, wide.bfloat16().float())
    torch.testing.assert_close(master, wide, rtol=0, atol=1e-9)


def saved_tensor(folder: Path, prefix: str) -> Tensor:
    """Return the tensor of a checkpoint whose name begins so."""
    for path in folder.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            for name in file.offset_keys():
                if name.startswith(prefix):
                    return file.get_tensor(name)
    raise AssertionError(prefix)


def test_a_resumed_run_exports_what_its_checkpoint_has(pool: Any, tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    saved("gpt2", before)
    plan = plan_of(before)
    kept = CheckpointOptions(folder=tmp_path / "saved")
    options = options_of(plan, before, None, checkpoint=kept)
    _, weights = pool.run(train, 2, plan.to_json(), options)[0]
    files = WeightFiles(weights_from=before, export_weights=after, export_format=WeightFormat.DCP)
    resumed = options.replace(weights=files, checkpoint=kept.replace(resume=True))
    assert pool.run(train, 2, plan.to_json(), resumed)[0][0] == []  # no step was left
    found = {name: torch.zeros_like(tensor) for name, tensor in weights.items()}
    _load_state_dict(found, FileSystemReader(after), no_dist=True)
    for name, tensor in weights.items():
        assert torch.equal(found[name], tensor)
