"""Whole models cut into layers have the loss and the gradients of the whole."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import flex_attention
from torch.nn.attention.flex_attention import create_block_mask
from torch.utils import _pytree as pytree

from synth.errors import SynthError
from synth.runtime.models import ModelSpec, load_layers
from synth.runtime.models.cut import Piece, cut_in_words, cut_model
from synth.runtime.models.cut.check import chained
from synth.runtime.models.cut.whole import loss_call
from synth.runtime.models.signature import layer_signature
from synth.runtime.models.ties import find_ties
from tests.runtime.cut.whole_models import (
    WORDS,
    ByParts,
    DiT,
    FromNumbers,
    Gpt,
    Llama,
    Penalized,
    Recurrent,
    Repeating,
    Routed,
    Titan,
    TwoTables,
    UNet,
    causal,
)


def tokens(seed: int = 0) -> Tensor:
    return torch.randint(WORDS, (2, 8), generator=torch.Generator().manual_seed(seed))


def of_images(seed: int) -> tuple[Any, Any]:
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(2, 3, 8, 8, generator=draw)
    t, y = torch.rand(2, generator=draw), torch.randint(10, (2,), generator=draw)
    return (x, t, y), torch.randn(2, 16, 12, generator=draw)


def of_tokens(seed: int) -> tuple[Any, Any]:
    return tokens(seed), tokens(seed + 1)


def of_positions(seed: int) -> tuple[Any, Any]:
    return {"tokens": tokens(seed), "positions": tokens(seed + 2)}, tokens(seed + 1)


def of_pictures(seed: int) -> tuple[Any, Any]:
    x = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(seed))
    return x, x.flip(0)


def of_keywords(seed: int) -> tuple[Any, Any]:
    scale = torch.rand(2, 8, generator=torch.Generator().manual_seed(seed))
    return {"scale": scale, "words": tokens(seed)}, tokens(seed + 1)


CASES: dict[str, tuple[type[nn.Module], Callable[[int], tuple[Any, Any]], str, int]] = {
    "llama": (Llama, of_tokens, "tok_embeddings layers.0 .1 .2 output", 3),
    "titan": (Titan, of_tokens, "tok_embeddings layers.0 .1 .2 output", 3),
    "titan-positions": (Titan, of_positions, "tok_embeddings layers.0 .1 .2 output", 4),
    "gpt": (Gpt, of_tokens, "transformer.wte transformer.h.0 .1 .2 lm_head", 3),
    "dit": (DiT, of_images, "x_embedder blocks.0 .1 .2 final_layer", 3),
    "by-parts": (ByParts, of_tokens, "embed blocks.0 .1 .2 head", 3),
    "recurrent": (Recurrent, of_keywords, "embed layers.layer0 .layer1 .layer2 head", 5),
    "penalized": (Penalized, of_tokens, "embed blocks.0 .1 .2 .3 head", 6),
    "repeating": (Repeating, of_tokens, "embed blocks.0 blocks.0 blocks.0 head", 3),
    "unet": (UNet, of_pictures, "down.0 down.1 down.2 mid up.0 up.1 up.2 loss", 8),
}


@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize("mask", ["in the forward", "given"])
def test_flex_attention_is_cut_with_a_mask_that_the_model_makes(
    monkeypatch: pytest.MonkeyPatch, mask: str
) -> None:
    model = Titan(is_flex=True)
    if mask == "given":
        given = create_block_mask(causal, None, None, 8, 8, device="cpu")
        with pytest.raises(
            SynthError, match=r"BlockMask that holds tensors.* module around the mo"
        ):
            cut_model(model, {"tokens": tokens(), "attention_masks": given}, tokens(1))
        return
    with pytest.raises(
        SynthError, match=r"fails in a forward and backward on the CPU.*check=False"
    ):
        cut_model(model, tokens(), tokens(1))
    assert len(cut_model(model, tokens(), tokens(1), check=False)) == 5
    monkeypatch.setattr(flex_attention, "_validate_device", lambda *_: None)
    assert len(cut_model(model, tokens(), tokens(1))) == 5


def gradients(model: nn.Module, loss: Tensor) -> dict[str, Tensor | None]:
    """Run the backward, and take the gradients of all parameters."""
    model.zero_grad()
    loss.backward()
    return {name: p.grad for name, p in model.named_parameters()}


@pytest.mark.parametrize("name", CASES)
def test_the_pieces_have_the_gradients_of_the_whole_on_another_batch(name: str) -> None:
    kind, batch, names, num_kinds = CASES[name]
    torch.manual_seed(0)
    model = kind()
    pieces = cut_model(model, *batch(0))
    expected_names: list[str] = []
    for each in names.split(" "):
        prefix = expected_names[-1].rpartition(".")[0] if each.startswith(".") else ""
        expected_names.append(prefix + each)
    assert [piece.name for piece in pieces] == expected_names
    assert len({layer_signature(piece, with_places=False) for piece in pieces}) == num_kinds
    inputs, targets = batch(7)
    torch.manual_seed(1)  # of dropout
    expected = gradients(model, loss_call(model)(inputs, targets))
    torch.manual_seed(1)
    found = gradients(model, chained(pieces, inputs, targets))
    for parameter, gradient in expected.items():
        if gradient is None:
            assert found[parameter] is None
        else:
            torch.testing.assert_close(found[parameter], gradient, rtol=0, atol=0)


def test_masks_and_angles_are_constants_and_only_the_hidden_state_travels() -> None:
    said = cut_in_words(cut_model(Llama(), *of_tokens(0)))
    assert said is not None
    assert "goes [2, 8, 16] float32 after each; constants of 512 B" in said


def test_a_condition_travels_beside_the_hidden_state() -> None:
    said = cut_in_words(cut_model(DiT(), *of_images(0)))
    assert said is not None and "[2, 16, 16] float32 and [2, 16] float32 after each" in said


def test_skipped_values_travel_through_the_layers_between() -> None:
    pieces = cut_model(UNet(), *of_pictures(0))
    assert [len(piece.returned) for piece in pieces] == [2, 3, 3, 3, 2, 1, 1, 1]


def test_what_is_added_to_the_last_block_is_its_own() -> None:
    for kind, batch in ((ByParts, of_tokens), (Recurrent, of_keywords)):
        pieces = cut_model(kind(), *batch(0))
        assert pieces[-2].returned == ("[2, 8, 16] float32",)


def test_names_cut_where_they_say_so() -> None:
    at = "transformer.wte | transformer.h.* | transformer.ln_f | lm_head"
    pieces = cut_model(Gpt(), *of_tokens(0), at=at, check=True)
    assert [piece.name.rpartition(".")[2] for piece in pieces] == [
        "wte",
        "0",
        "1",
        "2",
        "ln_f",
        "lm_head",
    ]


def test_tied_weights_are_found_and_keep_their_names() -> None:
    pieces = cut_model(Gpt(), *of_tokens(0))
    (tie,) = find_ties(pieces)
    assert [pieces[index].original_name(name) for index, name in tie.places] == [
        "transformer.wte.weight",
        "lm_head.weight",
    ]


def test_a_cut_leaves_the_model_as_it_was() -> None:
    torch.manual_seed(0)
    model = UNet()
    before = pytree.tree_map(torch.clone, model.state_dict())
    state = torch.get_rng_state()
    cut_model(model, *of_pictures(0), check=True)
    assert torch.equal(state, torch.get_rng_state())
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize(
    ("kind", "at", "message"),
    [
        (Routed, None, r"reads numbers .*__bool__ at .*whole_models.py, line"),
        (FromNumbers, None, "depends on the inputs, .* in a way that cannot be followed"),
        (TwoTables, None, "no ModuleList, ModuleDict or Sequential of two"),
        (lambda: nn.Linear(2, 2), None, "no ModuleList, ModuleDict or Sequential of two"),
        (Llama, "embed | layers.*", "no module of Llama is called 'embed'; there are tok_emb"),
        (Llama, "layers | output", "calls no 'layers'"),
        (Llama, "layers.0 | layers.0.mlp", "layers.0.mlp is a part of layers.0"),
    ],
)
def test_what_cannot_be_cut_is_refused(
    kind: Callable[[], nn.Module], at: str | None, message: str
) -> None:
    with pytest.raises(SynthError, match=message):
        cut_model(kind(), *of_tokens(0), at=at, check=True)


def test_a_file_may_have_the_module_itself(tmp_path: Path) -> None:
    path = tmp_path / "made.py"
    path.write_text("from tests.runtime.cut.whole_models import Llama\nmodel = Llama()\n")
    torch.rand(3)  # other draws before the import change nothing
    spec = ModelSpec(f"{path}:model")
    first, second = load_layers(spec), load_layers(spec)
    assert len(first) == 5
    torch.manual_seed(0)
    drawn = Llama().tok_embeddings.weight
    weights = [next(layers[0].parameters()) for layers in (first, second)]
    for weight in weights:
        torch.testing.assert_close(weight, drawn, rtol=0, atol=0)
    assert weights[0] is not weights[1]
    with pytest.raises(SynthError, match=r"could not be called with \{'depth': 2\}"):
        load_layers(ModelSpec(f"{path}:model", {"depth": 2}))


def test_a_function_of_a_user_may_return_a_whole_module(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text("from tests.runtime.cut.whole_models import Llama as build\n")
    layers = load_layers(ModelSpec(f"{file}:build"))
    assert all(isinstance(layer, Piece) for layer in layers) and len(layers) == 5
