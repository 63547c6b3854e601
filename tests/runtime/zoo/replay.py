"""Replays a case with F, B and W of several micro-batches interleaved, against autograd."""

from typing import Any

import torch
from torch import Tensor, nn

from synth.runtime.execution.base.boundary import Boundary, Leaves, unpacked
from synth.runtime.execution.base.stage_protocol import ForwardInput
from synth.runtime.execution.stage.stage import Stage
from tests.runtime.zoo.case import Case, squared

ORDER = [("F", 0), ("F", 1), ("B", 0), ("F", 2), ("B", 2), ("W", 0), ("B", 1), ("W", 2), ("W", 1)]


def draw(case: Case, step: int) -> list[tuple[Any, ...]]:
    """The inputs of three micro-batches."""
    return [case.inputs(torch.Generator().manual_seed(10 * step + j)) for j in range(3)]


def by_stage(stage: Stage, inputs: list[tuple[Any, ...]]) -> tuple[list[Any], float]:
    """Run B and W apart; the inputs' gradients, and the least share that was left to W."""
    found: dict[int, Any] = {}
    leaves: dict[int, Leaves] = {}
    trainable = list(stage.parameters())
    share = 1.0
    stage.begin()
    for kind, j in ORDER:
        if kind == "F":
            torch.manual_seed(j)
            x = inputs[j][0]
            entry = (
                Boundary.of(x, trained=True) if x.is_floating_point() or x.is_complex() else None
            )
            leaves[j] = () if entry is None else entry.differentiable
            stage.forward(j, ForwardInput(inputs[j], entry))
        elif kind == "B":
            one = torch.ones((), device=inputs[j][0].device)
            found[j] = unpacked(leaves.get(j, ()), stage.backward_input(j, (one,)))
            deferred = sum(p.numel() for p in stage.deferred(j))
            share = min(share, deferred / max(1, sum(p.numel() for p in trainable)))
        else:
            stage.backward_weight(j)
    stage.end()
    return [found[j] for j in range(3)], share


def by_autograd(module: nn.Module, inputs: list[tuple[Any, ...]]) -> list[Any]:
    """The same as ordinary backwards, in the order of the Bs."""
    losses, starts = [], []
    for j, (x, *rest) in enumerate(inputs):
        torch.manual_seed(j)
        can = x.is_floating_point() or x.is_complex()
        start = x.clone().requires_grad_() if can else x
        losses.append(squared(module(start, *rest)))
        starts.append(start)
    for j in (0, 2, 1):
        losses[j].backward()
    return [(s.grad,) if s.requires_grad else () for s in starts]


def build(case: Case) -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    module = case.build().train()
    return module, case.prepare(module) if case.prepare else None


def kept(module: nn.Module) -> dict[str, Tensor | None]:
    """Gradients, those moved elsewhere, and buffers."""
    found: dict[str, Tensor | None] = {}
    for name, p in module.named_parameters():
        found[name] = p.grad
        found[f"{name}, moved"] = getattr(p, "main_grad", None)
    return found | dict(module.named_buffers())


def assert_alike(case: Case, mine: Any, theirs: Any, what: str) -> None:
    if mine is None or theirs is None:
        assert mine is theirs, f"{what}: one has no gradient"
        return
    if mine.is_sparse:
        mine, theirs = mine.to_dense(), theirs.to_dense()
    if case.reason is None:
        assert torch.equal(mine, theirs), f"{what}: off by {float((mine - theirs).abs().max()):.1e}"
    else:
        wide = 2e-2 if "bfloat16" in case.reason else 1e-5
        torch.testing.assert_close(mine, theirs, rtol=wide, atol=wide, msg=what)


def replay(case: Case, steps: int = 3) -> None:
    """Compare the gradients and buffers of several steps, and the share that waits for W."""
    (mine, my_listeners), (theirs, their_listeners) = build(case), build(case)
    stage = Stage(mine, is_first=False, is_last=True, loss=lambda output, _: squared(output))
    for step in range(steps):
        found, share = by_stage(stage, draw(case, step))
        wanted = by_autograd(theirs, draw(case, step))
        for j, (a, b) in enumerate(zip(found, wanted, strict=True)):
            for mine_x, true_x in zip(a, b, strict=True):
                assert_alike(case, mine_x, true_x, f"input {j}")
        true = kept(theirs)
        for key, tensor in kept(mine).items():
            assert_alike(case, tensor, true[key], f"step {step}, {key}")
    assert share >= case.deferred, f"{share:.3f} of the elements wait for W"
    assert my_listeners is None or len(my_listeners) == len(their_listeners)
