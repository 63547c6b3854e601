"""Built-in models and a user's own: how they are named, checked, seeded and told apart."""

import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from synth.errors import SynthError
from synth.runtime.models import (
    ModelSpec,
    build_model,
    layer_names,
    layer_signature,
    load_layers,
    num_safe_ids,
    outline_of,
    vocabulary_size,
)
from synth.runtime.models.llama import rotate, rotations
from synth.runtime.models.spec import Argument
from synth.runtime.split import SplitTape
from tests.runtime.gradients import gradient_of

SMALL: dict[str, dict[str, Argument]] = {
    "gpt": {"vocabulary_size": 50, "width": 16, "num_blocks": 2, "num_heads": 2},
    "llama": {
        "vocabulary_size": 50,
        "width": 16,
        "num_blocks": 2,
        "num_heads": 4,
        "num_kv_heads": 2,
    },
}


def small(name: str, **arguments: Argument) -> ModelSpec:
    return ModelSpec(name, {**SMALL[name], **arguments})


def loss_of(layers: list[nn.Module], tokens: Tensor) -> Tensor:
    x = tokens
    for layer in layers[:-1]:
        x = layer(x)
    loss: Tensor = layers[-1](x, tokens)
    return loss


@pytest.fixture
def tokens() -> Tensor:
    return torch.randint(0, 50, (2, 7), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", SMALL)
def test_a_fresh_model_predicts_no_better_than_chance(name: str, tokens: Tensor) -> None:
    layers = list(build_model(small(name), seed=0).layers.values())
    assert loss_of(layers, tokens).item() == pytest.approx(math.log(50), abs=0.2)


@pytest.mark.parametrize("name", SMALL)
def test_no_token_sees_a_later_one(name: str, tokens: Tensor) -> None:
    *body, _ = build_model(small(name), seed=0).layers.values()
    model, changed = nn.Sequential(*body), tokens.clone()
    changed[:, 4] = (changed[:, 4] + 1) % 50
    a, b = model(tokens), model(changed)
    torch.testing.assert_close(a[:, :4], b[:, :4])
    assert not torch.allclose(a[:, 4:], b[:, 4:])


@pytest.mark.parametrize("name", SMALL)
def test_a_checkpointed_split_backward_gives_the_plain_ones_gradients(
    name: str, tokens: Tensor
) -> None:
    plain = list(build_model(small(name), seed=0).layers.values())
    loss_of(plain, tokens).backward()
    split = list(build_model(small(name, checkpoint=True), seed=0).layers.values())
    tape = SplitTape()
    tape.backward_input(tape.forward(loss_of, split, tokens))
    tape.backward_weight()
    for a, b in zip(
        nn.ModuleList(plain).parameters(), nn.ModuleList(split).parameters(), strict=True
    ):
        assert torch.equal(gradient_of(a), gradient_of(b))


def test_rotary_products_depend_only_on_the_distance() -> None:
    q, k = torch.randn(1, 1, 1, 8), torch.randn(1, 1, 1, 8)
    cos, sin = rotations(9, 8, 10000.0, q)

    def product(i: int, j: int) -> Tensor:
        return (rotate(q, cos[i], sin[i]) * rotate(k, cos[j], sin[j])).sum()

    torch.testing.assert_close(product(5, 3), product(8, 6))
    assert not torch.isclose(product(5, 3), product(5, 4))


@pytest.mark.parametrize(
    ("name", "millions"),
    [
        ("gpt-bytes", 6.5),
        ("gpt2-small", 163.0),
        ("gpt2-xl", 1637.8),
        ("llama-7b", 6738.4),
        ("llama3-8b", 8030.3),
    ],
)
def test_sizes_have_the_published_numbers_of_parameters(name: str, millions: float) -> None:
    # GPT-2's published 124 and 1558 million, and a head of its own.
    with torch.device("meta"):
        layers = load_layers(ModelSpec(name))
    count = sum(p.numel() for layer in layers for p in layer.parameters())
    assert count / 1e6 == pytest.approx(millions, rel=0.01)


@pytest.mark.parametrize("name", SMALL)
def test_a_layer_is_the_same_whichever_others_are_built(name: str) -> None:
    whole, part = (
        build_model(small(name), seed=3).layers,
        build_model(small(name), seed=3, indices=[2]).layers,
    )
    assert list(part) == [2]
    for a, b in zip(whole[2].parameters(), part[2].parameters(), strict=True):
        assert torch.equal(a, b)


def test_layers_and_seeds_differ_from_one_another() -> None:
    made = (build_model(small("gpt"), seed=seed).layers for seed in (3, 4))
    one, other = (cast(list[Any], layers) for layers in made)
    weights = [one[1].qkv.weight, one[2].qkv.weight, other[1].qkv.weight]
    assert not any(torch.equal(weights[i], weights[j]) for i, j in [(0, 1), (0, 2), (1, 2)])


def test_building_leaves_the_random_state_alone() -> None:
    before = torch.get_rng_state()
    build_model(small("gpt"), seed=3)
    assert torch.equal(before, torch.get_rng_state())


def test_only_the_asked_for_layers_of_a_model_take_memory() -> None:
    # 8 billion parameters would not fit in here.
    built = build_model(
        ModelSpec("llama3-8b", {"vocabulary_size": 8}), seed=0, indices=[0, 33]
    ).layers
    assert all(p.device.type == "cpu" for layer in built.values() for p in layer.parameters())


@pytest.mark.parametrize("name", ["position", "embed_positions", "pos_emb", "wpe"])
@pytest.mark.parametrize("length", [16, 1000])
def test_an_embedding_of_positions_is_not_taken_for_the_vocabulary(name: str, length: int) -> None:
    layer = nn.ModuleDict({name: nn.Embedding(length, 4), "token": nn.Embedding(100, 4)})
    assert vocabulary_size(layer) == num_safe_ids(layer) == 100
    assert vocabulary_size(nn.Embedding(7, 2)) == num_safe_ids(nn.Embedding(7, 2)) == 7
    assert vocabulary_size(nn.Linear(2, 2)) is num_safe_ids(nn.Linear(2, 2)) is None


def test_where_names_do_not_tell_no_embedding_is_given_more_than_it_takes() -> None:
    layer = nn.ModuleDict({"one": nn.Embedding(16, 4), "other": nn.Embedding(100, 4)})
    assert (vocabulary_size(layer), num_safe_ids(layer)) == (100, 16)


def test_names_are_readable_and_unique() -> None:
    assert layer_names(load_layers(small("gpt"))) == ["embedding", "block.0", "block.1", "head"]
    assert layer_names([nn.Linear(1, 1), nn.Linear(1, 1)]) == ["Linear.0", "Linear.1"]


def test_blocks_are_identical_and_other_layers_are_not() -> None:
    signatures = [layer_signature(layer) for layer in load_layers(small("gpt"))]
    assert signatures[1] == signatures[2] and len(set(signatures)) == 3


@pytest.mark.parametrize(
    "other",
    [
        nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.2)),
        nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.1)),
        nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.1, inplace=True)),
        nn.Sequential(nn.Linear(4, 4).bfloat16(), nn.Dropout(0.1)),
        nn.Sequential(nn.Linear(4, 4, bias=False), nn.Dropout(0.1)),
    ],
    ids=["p", "shape", "inplace", "dtype", "no bias"],
)
def test_layers_that_differ_in_any_setting_are_not_identical(other: nn.Module) -> None:
    layer = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.1))
    assert layer_signature(layer) != layer_signature(other)


USERS = """
import torch
from torch import nn
def model(width: int = 4):
    return [nn.Linear(width, width), nn.Dropout(0.1)]
def empty():
    return []
def sequential():
    return nn.Sequential(nn.Linear(1, 1))
def functions():
    return [nn.Linear(1, 1), torch.relu]
def wrong():
    return [nn.Linear("wide", 1)]
def valueless():
    return [nn.Linear(1, 1), nn.Linear(1, 1, device="meta")]
"""


@pytest.fixture
def users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "users_models.py").write_text(USERS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    return str(tmp_path / "users_models.py")


def test_a_users_function_is_found_by_file_and_by_module(users: str) -> None:
    for place in (users, "users_models"):
        layers = build_model(ModelSpec(f"{place}:model", {"width": 3}), seed=1).layers
        assert layers[0].weight.shape == (3, 3)


def test_a_users_layers_are_the_same_for_the_same_seed(users: str) -> None:
    first, second = (build_model(ModelSpec(f"{users}:model"), seed=1).layers[0] for _ in range(2))
    assert torch.equal(first.get_parameter("weight"), second.get_parameter("weight"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothing", "no function 'nothing'; it has"),
        ("empty", "returned an empty list"),
        ("sequential", "it was called with random token ids"),
        ("functions", "as layer 1"),
        (
            "valueless",
            "layer 1 of .*valueless has parameters without values, .* trained from zeros",
        ),
        ("wrong", r"wrong failed: TypeError: .*users_models.py, line 13, wrong\)"),
    ],
)
def test_a_users_mistake_is_named(users: str, name: str, message: str) -> None:
    with pytest.raises(SynthError, match=message):
        load_layers(ModelSpec(f"{users}:{name}"))


def test_layers_without_values_are_outlined_and_read_from_files(users: str) -> None:
    spec = ModelSpec(f"{users}:valueless")
    assert len(outline_of(spec)) == 2
    assert len(load_layers(replace(spec, empty=True))) == 2


def test_a_file_that_exits_is_no_exit_of_ours(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("raise SystemExit(3)")
    with pytest.raises(SynthError, match=r"script.py failed to import: SystemExit\(3\)"):
        load_layers(ModelSpec(f"{tmp_path / 'script.py'}:model"))


def test_a_users_function_is_called_only_with_what_it_takes(users: str) -> None:
    with pytest.raises(SynthError, match=r"'height'.*declared \(width: int = 4\)"):
        load_layers(ModelSpec(f"{users}:model", {"height": 3}))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (ModelSpec("gpt3"), "no model is called 'gpt3'; there are gpt, gpt-bytes"),
        (ModelSpec("gpt", {"depth": 3}), "no argument 'depth'; it takes vocabulary_size, width"),
        (ModelSpec("gpt", {"width": 1.5}), "width = 1.5 is a float; it needs to be of type int"),
        (ModelSpec("gpt", {"width": True}), "width = True is a bool"),
        (ModelSpec("gpt", {"num_blocks": 0}), "num_blocks = 0"),
        (ModelSpec("gpt", {"num_heads": 7}), "width = 768 is not divisible by num_heads = 7"),
        (ModelSpec("llama", {"num_kv_heads": 3}), "num_heads = 8 is not divisible by"),
        (ModelSpec("no/such.py:model"), "there is no file"),
        (ModelSpec("no_such_module:model"), "there is no module 'no_such_module'"),
    ],
)
def test_a_wrong_spec_is_refused_with_the_way_out(spec: ModelSpec, message: str) -> None:
    with pytest.raises(SynthError, match=message):
        load_layers(spec)


def test_a_layer_that_is_not_there_cannot_be_built() -> None:
    with pytest.raises(SynthError, match="has layers 0 to 3"):
        build_model(small("gpt"), seed=0, indices=[4])


def test_too_long_a_sequence_is_refused() -> None:
    embedding = load_layers(small("gpt", context_length=4))[0]
    with pytest.raises(SynthError, match="5 tokens exceeds context_length = 4"):
        embedding(torch.zeros(1, 5, dtype=torch.int64))


def test_weights_tied_across_layers_are_known_by_name_whichever_layers_are_built(
    tmp_path: Path,
) -> None:
    file = tmp_path / "tied.py"
    file.write_text(
        "from torch import nn\n"
        "def layers():\n"
        "    first, last = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4))\n"
        "    last[0].weight = first.weight\n"
        "    return [first, nn.ReLU(), last]\n"
    )
    spec = ModelSpec(f"{file}:layers")
    whole = build_model(spec, seed=0, dtype=torch.bfloat16)
    (tied,) = whole.tied.values()
    assert whole.layers[0].weight is tied and whole.layers[2].get_parameter("0.weight") is tied
    for index in (0, 2):
        part = build_model(spec, seed=0, indices=[index])
        assert part.tied.keys() == whole.tied.keys()
    assert not build_model(spec, seed=0, indices=[1]).tied
