"""Optimizer state that is no tensor: integers, lists, nested ones; kept exactly, without pickle."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from synth.errors import Mismatch, SynthError
from synth.run_options.checkpoint_options import CheckpointOptions
from synth.runtime.checkpoint.checkpointer import Checkpointer
from synth.runtime.checkpoint.errors import Damaged
from synth.runtime.checkpoint.nested_values import NotStorable, decode, encode
from tests.runtime.checkpoint.test_checkpoint import state_of


class Shampoo(torch.optim.Optimizer):
    """Preconditions by one matrix for each dimension; its state is of every kind."""

    def __init__(self, parameters: Any, lr: float = 0.1) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self._update(p, self.state[p], group["lr"])

    def _update(self, p: Tensor, state: dict[str, Any], lr: float) -> None:
        gradient = p.grad
        assert gradient is not None
        if not state:
            state |= {"step": 0, "warm": True, "decay": 1.0, "name": "shampoo", "worst": math.inf}
            state["factors"] = [torch.eye(n) for n in p.shape]
            state["history"] = ({"norms": []}, torch.zeros(2, dtype=torch.uint8))
        state["step"] += 1
        state["decay"] *= 1 - 1 / 3 * (lr > 0)
        state["warm"] = state["step"] < 3
        state["history"][0]["norms"].append(float(gradient.norm()))
        state["history"][1].add_(7)
        update = gradient
        for n, factor in enumerate(state["factors"]):
            flat = gradient.movedim(n, 0).flatten(1) if p.dim() > 1 else gradient[:, None]
            factor.add_(flat @ flat.T)
            update = torch.tensordot(torch.linalg.inv(factor), update, ([1], [n])).movedim(0, n)
        p.sub_(lr * state["decay"] * update)


class Loop:
    """Two layers in a chain, trained as two ranks or one would."""

    def __init__(
        self, folder: Path, names: list[str], make: Callable[..., Any], *, resume: bool = False
    ) -> None:
        self.layers = {name: nn.Linear(4, 4) for name in names}
        for name, layer in self.layers.items():
            generator = torch.Generator().manual_seed(int(name[-1]) + 10 * resume)
            for parameter in layer.parameters():
                nn.init.normal_(parameter, generator=generator)
        parameters = [p for layer in self.layers.values() for p in layer.parameters()]
        self.optimizer = make(parameters)
        options = CheckpointOptions(folder=folder, resume=resume)
        self.checkpointer = Checkpointer(options, self.layers, self.optimizer, timeout_s=60)

    def train(self, first: int, end: int) -> dict[str, Tensor]:
        """Each layer has a loss of its own, so that a partition changes nothing."""
        for number in range(first, end):
            x = torch.randn(8, 4, generator=torch.Generator().manual_seed(number))

            def closure(x: Tensor = x) -> Tensor:
                self.optimizer.zero_grad()
                losses = [layer(x).square().mean() for layer in self.layers.values()]
                total = torch.stack(losses).sum()
                total.backward()
                return total

            if isinstance(self.optimizer, torch.optim.LBFGS):
                self.optimizer.step(closure)
            else:
                closure()
                self.optimizer.step()
        return {n: layer.weight.detach().clone() for n, layer in self.layers.items()}


def make_lbfgs(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.LBFGS(parameters, lr=0.1, max_iter=3, line_search_fn="strong_wolfe")


MAKE = {"Shampoo": Shampoo, "LBFGS": make_lbfgs}


def parted(
    rank: int, size: int, folder: str, name: str, again: list[list[str]]
) -> tuple[dict[str, Tensor], dict[str, Tensor] | str]:
    """Weights after five steps with a layer per rank; after three, a checkpoint, and two more."""
    whole = Loop(Path(folder), [f"layer.{rank}"], MAKE[name])
    whole.train(0, 3)
    whole.checkpointer.save(state_of(3))
    wanted = whole.train(3, 5)
    whole.checkpointer.wait()
    resumed = Loop(Path(folder), again[rank], MAKE[name], resume=True)
    try:
        found = resumed.checkpointer.restore(lambda state: None)
    except Mismatch as error:
        return wanted, str(error)
    assert found is not None
    if name == "Shampoo":
        for parameter, state in resumed.optimizer.state.items():
            assert type(state["step"]) is int and state["step"] == 3
            assert state["warm"] is False and state["worst"] == math.inf
            assert type(state["history"]) is tuple and len(state["history"][0]["norms"]) == 3
            assert state["history"][1].tolist() == [21, 21]
            assert [len(f) for f in state["factors"]] == list(parameter.shape)
    return wanted, resumed.train(3, 5)


@pytest.mark.parametrize("name", MAKE)
def test_training_goes_on_bit_for_bit(tmp_path: Path, pool: Any, name: str) -> None:
    same = [["layer.0"], ["layer.1"]]
    for wanted, found in pool.run(parted, 2, str(tmp_path), name, same):
        assert wanted.keys() == found.keys()
        assert all(torch.equal(wanted[n], found[n]) for n in wanted)


def resumed_alone(rank: int, size: int, folder: str, name: str) -> dict[str, Tensor] | str:
    """The weights, or the error, of one rank that has both layers."""
    resumed = Loop(Path(folder), ["layer.1", "layer.0"], MAKE[name], resume=True)
    try:
        resumed.checkpointer.restore(lambda state: None)
    except Mismatch as error:
        return str(error)
    return resumed.train(3, 5)


def test_state_of_each_parameter_goes_on_under_another_partition(tmp_path: Path, pool: Any) -> None:
    results = pool.run(parted, 2, str(tmp_path), "Shampoo", [["layer.1"], ["layer.0"]])
    wanted = {n: weight for weights, _ in results for n, weight in weights.items()}
    (alone,) = pool.run(resumed_alone, 1, str(tmp_path), "Shampoo")
    for found in (results[1][1] | results[0][1], alone):
        assert all(torch.equal(wanted[n], found[n]) for n in wanted)


def test_state_of_all_parameters_together_is_refused_on_another_partition(
    tmp_path: Path, pool: Any
) -> None:
    pool.run(parted, 2, str(tmp_path), "LBFGS", [["layer.0"], ["layer.1"]])
    (refusal,) = pool.run(resumed_alone, 1, str(tmp_path), "LBFGS")
    assert "keeps its state of all parameters of a rank together" in refusal
    assert "--ignore-optimizer" in refusal


def test_values_are_json_that_gives_the_same_values() -> None:
    value = {"a": (1, 2.5, None, True, "x", -math.inf), 3: [torch.ones(2), {"b": []}], (4,): 2**80}
    tensors: dict[str, Tensor] = {}
    found = decode(encode(value, "key", tensors), tensors.__getitem__)
    assert found == value or str(found) == str(value)
    assert type(found["a"]) is tuple and list(found) == ["a", 3, (4,)] and found[(4,)] == 2**80
    assert list(tensors) == ["key.1.0"]


@pytest.mark.parametrize("value", [object(), torch.Size([1]), b"x", 1j, {"a": {1, 2}}])
def test_other_values_are_refused(value: object) -> None:
    with pytest.raises(NotStorable):
        encode([value], "key", {})


@pytest.mark.parametrize(
    "found", [{"tuple": 1}, {"code": "x"}, {"float": "1"}, {"dict": [[1]]}, {"dict": [[[], 1]]}]
)
def test_values_that_no_checkpoint_writes_are_damage(found: object) -> None:
    with pytest.raises(Damaged):
        decode(found, lambda name: torch.ones(()))


def test_a_value_that_cannot_be_stored_is_named(tmp_path: Path, pool: Any) -> None:
    assert "SGD keeps code as a function" in pool.run(keep_a_function, 1, str(tmp_path))[0]


def keep_a_function(rank: int, size: int, folder: str) -> str:
    loop = Loop(Path(folder), ["layer.0"], lambda p: torch.optim.SGD(p, lr=0.1))
    loop.optimizer.state[loop.layers["layer.0"].weight]["code"] = keep_a_function
    with pytest.raises(SynthError) as caught:
        loop.checkpointer.save(state_of(0))
    return str(caught.value)
