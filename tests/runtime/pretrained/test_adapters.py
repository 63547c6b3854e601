"""Adapters of PEFT from pipelines: `PeftModel.from_pretrained` loads them bit for bit."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import synth
from synth.errors import SynthError
from synth.families import generate
from synth.runtime.execution.transport.in_process.ranks import InProcessGroup, run_ranks

peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")

SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 64}
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1}
TOKENS = torch.arange(32).reshape(4, 8)
LORA = {"r": 2, "target_modules": ["q_proj", "down_proj"]}


def base() -> Any:
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, **HEADS))


def adapted(config: Any) -> Any:
    """Return the model with an adapter whose numbers are all others than zero."""
    model = peft.get_peft_model(base(), config)
    torch.manual_seed(1)
    for parameter in (p for p in model.parameters() if p.requires_grad):
        nn.init.normal_(parameter, std=0.1)
    return model


def train(model: nn.Module, folder: Path, load: Path | None = None) -> None:
    """Train a step on two ranks, from an adapter in a folder if it is given, and save."""
    pieces = synth.cut_model(model, TOKENS[:1], TOKENS[:1], check=False)

    def on_rank(group: InProcessGroup) -> None:
        own = pieces[2:] if group.rank else pieces[:2]
        pipeline = synth.Pipeline(generate("1f1b", 2, 4), own, group=group, timeout_s=60)
        if load is not None:
            synth.load_weights(load, pipeline)
        pipeline.step(pipeline.split(TOKENS, targets=TOKENS.flip(1)))
        torch.optim.SGD([p for each in own for p in each.parameters()], 0.1).step()
        synth.save_weights(folder, pipeline)

    run_ranks(2, on_rank)


@pytest.mark.slow
@pytest.mark.parametrize(
    "config",
    [
        pytest.param(lambda: peft.LoraConfig(**LORA), id="lora"),
        pytest.param(
            lambda: peft.LoraConfig(
                use_dora=True, init_lora_weights="olora", modules_to_save=["lm_head"], **LORA
            ),
            id="dora",
        ),
        pytest.param(
            lambda: peft.LoraConfig(r=2, target_modules=["embed_tokens", "lm_head"]),
            marks=pytest.mark.filterwarnings("ignore:Setting `save_embedding_layers`"),
            id="embeddings",
        ),
        pytest.param(
            lambda: peft.IA3Config(target_modules=["k_proj"], feedforward_modules=[]), id="ia3"
        ),
    ],
)
def test_an_adapter_is_saved_as_peft_loads_it(config: Any, tmp_path: Path) -> None:
    model = adapted(config())
    assert len(synth.cut_model(model, TOKENS[:1], TOKENS[:1])) == 4
    other = copy.deepcopy(model)
    train(model, tmp_path / "tuned")
    names = sorted(path.name for path in (tmp_path / "tuned").iterdir())
    assert names == ["adapter_config.json", "adapter_model.safetensors"]

    model.save_pretrained(tmp_path / "by-peft")
    ours, theirs = (load_file(tmp_path / of / names[1]) for of in ("tuned", "by-peft"))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())
    loaded = peft.PeftModel.from_pretrained(base(), tmp_path / "tuned")
    state = dict(loaded.named_parameters())
    assert all(torch.equal(state[name], p) for name, p in model.named_parameters())

    model.zero_grad()
    train(model, tmp_path / "on")
    train(other, tmp_path / "from-the-file", load=tmp_path / "tuned")
    on, from_file = (load_file(tmp_path / of / names[1]) for of in ("on", "from-the-file"))
    assert all(torch.equal(tensor, from_file[name]) for name, tensor in on.items())


def test_what_is_trained_beside_the_adapter_is_not_left_out(tmp_path: Path) -> None:
    model = adapted(peft.LoraConfig(**LORA))
    norm: Tensor = model.get_base_model().model.norm.weight
    norm.requires_grad_()
    with pytest.raises(SynthError, match=r"trains model\.norm\.weight beside .*modules_to_save"):
        train(model, tmp_path / "tuned")


def test_prompts_that_peft_adds_to_the_inputs_are_refused() -> None:
    config = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
    with pytest.raises(SynthError, match="with a PromptTuningConfig gives its model other inputs"):
        synth.cut_model(peft.get_peft_model(base(), config), TOKENS[:1], TOKENS[:1])


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        pytest.param(
            lambda: peft.AdaLoraConfig(target_modules=["q_proj"], total_step=10),
            "AdaLoraConfig computes beside its model, such as a term of the loss",
            id="adalora",
        ),
        pytest.param(
            lambda: peft.LoraConfig(task_type="CAUSAL_LM", alora_invocation_tokens=[1], **LORA),
            "LoraConfig finds in each input where its adapter begins",
            id="alora",
        ),
    ],
)
def test_what_peft_computes_beside_its_model_is_refused(config: Any, reason: str) -> None:
    with pytest.raises(SynthError, match=reason):
        synth.cut_model(peft.get_peft_model(base(), config()), TOKENS[:1], TOKENS[:1])


def test_the_weights_below_an_adapter_are_loaded_before_it(tmp_path: Path) -> None:
    base().save_pretrained(tmp_path / "base")
    with pytest.raises(SynthError, match="base has none: load the weights below it before it is"):
        train(adapted(peft.LoraConfig(**LORA)), tmp_path / "tuned", load=tmp_path / "base")


@pytest.mark.slow
def test_an_adapter_of_another_config_is_not_loaded(tmp_path: Path) -> None:
    adapted(peft.LoraConfig(lora_alpha=64, lora_dropout=0.5, **LORA)).save_pretrained(tmp_path)
    for other, difference in (
        ({}, "lora_alpha=64, and the model's has lora_alpha=8"),
        (
            {"lora_alpha": 64, "init_lora_weights": "pissa"},
            "init_lora_weights=True, and .*='pissa'",
        ),
    ):
        with pytest.raises(SynthError, match=f"has {difference}: make the model by PeftModel"):
            train(adapted(peft.LoraConfig(**LORA, **other)), tmp_path / "tuned", load=tmp_path)
    model = peft.PeftModel.from_pretrained(base(), tmp_path, is_trainable=True)
    train(model, tmp_path / "tuned", load=tmp_path)


def test_tensors_that_peft_keeps_in_no_layer_are_not_left_out(tmp_path: Path) -> None:
    config = peft.VeraConfig(r=2, target_modules=["q_proj"])
    with pytest.raises(SynthError, match=r"keeps base_model\.vera_A .* by save_projection=False"):
        train(adapted(config), tmp_path / "tuned")
