"""torchtitan runs the plans that synth writes for it, and its model trains in a `Pipeline`.

Tested with torchtitan 0.3.0, which needs triton, and PyTorch 2.13. On the CPU its attention is the
dense form of PyTorch's flex attention.
"""

import copy
import tomllib
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh

import synth
from synth.interop.torch_csv import to_torch_csv
from synth.interop.torchtitan import to_torchtitan
from synth.runtime.cutting import Replicate
from synth.schedule.files.plan_file import Plan
from tests.synth.interop.test_other_frameworks import plan_of

pytest.importorskip("torchtitan")
pytestmark = pytest.mark.slow

LENGTH, RANKS, COUNT = 16, 2, 4
TOKENS = torch.arange(COUNT * LENGTH).reshape(COUNT, LENGTH) * 7 % 2048
LABELS = TOKENS.roll(-1, 1)


def debug_model(num_layers: int = 22, kind: str = "llama3", flavor: str = "debugmodel") -> Any:
    """Make a debug model with as many layers as the plans' profile has blocks."""
    from torch.nn.attention import flex_attention as flex
    from torchtitan.models.common.attention import FlexAttention

    flex._validate_device = lambda *_: None
    FlexAttention._compiled_flex_attn = staticmethod(flex.flex_attention)
    config = import_module(f"torchtitan.models.{kind}").model_registry(flavor).model
    config.layers = [copy.deepcopy(config.layers[i % 6]) for i in range(num_layers)]
    torch.manual_seed(0)
    model = config.build()
    model.init_states()
    return model


def mean_loss(logits: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten()) / COUNT


def gradients(modules: list[Any]) -> dict[str, Tensor]:
    named = (each for module in modules for each in module.named_parameters())
    return {name: parameter.grad.clone() for name, parameter in named}


def run_both(
    rank: int, size: int, text: str, folder: str, options: dict[str, Any]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the gradients of a rank under torchtitan's own functions, and in a `Pipeline`."""
    from torchtitan.config import ParallelismConfig, TrainingConfig
    from torchtitan.distributed import pipeline_parallel as titan

    warnings.simplefilter("ignore")
    parallelism = ParallelismConfig(**options["parallelism"])
    training = TrainingConfig(**options["training"])
    model, device = debug_model(), torch.device("cpu")
    positions = torch.arange(LENGTH).expand(1, LENGTH)
    own = {
        "positions": positions,
        "attention_masks": model.get_attention_masks(positions=positions),
    }
    stages, parts = titan._pipeline_module_split(
        model,
        init_device_mesh("cpu", (size,), mesh_dim_names=("pp",)),
        parallelism.pipeline_parallel_schedule,
        device,
        parallelism.module_fqns_per_model_part,
    )
    schedule: Any = titan._build_pipeline_schedule(
        parallelism=parallelism,
        local_batch_size=training.local_batch_size,
        stages=stages,
        loss_fn=lambda *given: (mean_loss(*given), None),
    )
    for stage in stages:
        stage.has_backward = True
    holds_first, holds_last = (any(getattr(s, n) for s in stages) for n in ("is_first", "is_last"))
    inputs, targets = TOKENS.split(1), list(LABELS.split(1))
    schedule._step_microbatches(
        [(x,) for x in inputs] if holds_first else None,
        [own] * COUNT,
        targets if holds_last else None,
    )
    titans = gradients(parts)
    for part in parts:
        part.zero_grad()

    chunks = {stage.stage_index: part for stage, part in zip(stages, parts, strict=True)}
    pipeline = synth.Pipeline(Plan.from_json(text), chunks, loss=mean_loss, timeout_s=60)
    layers = {
        name: module
        for part in parts
        for name, module in [
            *((n, m) for n, m in part.named_children() if n != "layers"),
            *((f"layers.{n}", m) for n, m in part.layers.items()),
        ]
    }
    with torch.no_grad():
        for parameter in (p for part in parts for p in part.parameters()):
            parameter.zero_()
    synth.load_weights(f"{folder}/before", pipeline, layers=layers)
    keywords = {name: Replicate(value) for name, value in own.items()}
    batch = pipeline.split(TOKENS, targets=LABELS, **keywords)
    pipeline.step(batch, weights=[1.0] * COUNT)
    synth.save_weights(f"{folder}/after", pipeline, format="dcp", layers=layers)
    return titans, gradients(parts)


class WithMask(nn.Module):
    """The whole model, which is given the positions and the mask of its tokens."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Any:
        positions = torch.arange(tokens.shape[1]).expand(1, -1)
        masks = self.model.get_attention_masks(positions=positions)
        return self.model(tokens, positions=positions, attention_masks=masks)


@pytest.mark.parametrize(
    ("kind", "flavor"),
    [
        ("llama3", "debugmodel"),
        ("qwen3", "debugmodel"),
        ("qwen3", "debugmodel_moe"),
        ("deepseek_v3", "debugmodel"),
        ("kimi_k2_7", "debugmodel"),
    ],
)
def test_whole_models_are_cut_at_their_blocks(kind: str, flavor: str) -> None:
    """The cut compares the loss, the gradients and the buffers with those of the whole model."""
    warnings.simplefilter("ignore")
    model = WithMask(debug_model(2, kind, flavor))
    pieces = synth.cut_model(model, TOKENS[:1], LABELS[:1])
    names = ["tok_embeddings", "layers.0", "layers.1", "lm_head"]
    assert [piece.name for piece in pieces] == [f"model.{name}" for name in names]


@pytest.mark.parametrize("family", ["zb-h1", "zb-v"])
def test_plans_train_torchtitans_model_as_its_uncut_one(
    family: str, pool: Any, tmp_path: Path
) -> None:
    plan = plan_of(family, ranks=RANKS)
    (tmp_path / "plan.csv").write_text(to_torch_csv(plan.schedule()))
    options = tomllib.loads(to_torchtitan(plan, str(tmp_path / "plan.csv")))
    warnings.simplefilter("ignore")
    model = debug_model()
    save(model.state_dict(), checkpoint_id=tmp_path / "before")  # as torchtitan writes models
    found = pool.run(run_both, RANKS, plan.to_json(), str(tmp_path), options)

    positions = torch.arange(LENGTH).expand(1, LENGTH)
    masks = model.get_attention_masks(positions=positions)
    for tokens, labels in zip(TOKENS.split(1), LABELS.split(1), strict=True):
        mean_loss(model(tokens, positions, masks), labels).backward()
    expected = gradients([model])
    for way in (0, 1):
        together = {name: each for rank in found for name, each in rank[way].items()}
        assert together.keys() == expected.keys()
        for name, tensor in together.items():
            torch.testing.assert_close(tensor, expected[name], rtol=1e-4, atol=1e-6)

    read = {name: torch.zeros_like(tensor) for name, tensor in model.state_dict().items()}
    load(read, checkpoint_id=tmp_path / "after")
    for name, tensor in model.state_dict().items():
        assert torch.equal(read[name], tensor), name
