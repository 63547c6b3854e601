"""Gradients of many kinds of layers against autograd, and the cost of the split backward."""

import contextlib
import io
import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from benchmarks import split_cost as cost
from benchmarks.gpu.step import Where
from synth.runtime.execution.stage.stage import Stage
from tests.runtime.zoo import layers, weights, wrappings
from tests.runtime.zoo.case import Case, squared
from tests.runtime.zoo.replay import build, by_autograd, by_stage, draw, kept


def zoo(where: Where) -> dict[str, Any]:
    """Replay the kinds of modules of the tests with B and W apart, in their own dtypes.

    Gradients are compared with autograd's on the same device.
    """
    cases = [*layers.CASES, *weights.CASES, *wrappings.CASES]
    with contextlib.suppress(ImportError):
        from tests.runtime.zoo import hugging_face

        cases += hugging_face.CASES
    cases = cases[:: where.pick(40, 1)]
    equal = 0
    near: list[dict[str, Any]] = []
    wrong: list[dict[str, Any]] = []
    for case in cases:
        try:
            worst, share = _difference(case, where.device)
        except Exception as error:  # recorded; the others follow
            wrong.append({"case": case.name, "error": f"{type(error).__name__}: {error}"[:300]})
            continue
        if worst == 0:
            equal += 1
        elif worst < 1e-2:
            near.append({"case": case.name, "relative": worst})
        else:
            wrong.append({"case": case.name, "relative": worst})
        if share < case.deferred:
            wrong.append({"case": case.name, "waits_for_w": share})
    return {"cases": len(cases), "bit_for_bit": equal, "to_rounding": near, "wrong": wrong}


def _difference(case: Case, device: str) -> tuple[float, float]:
    """The largest difference of any gradient, relative to its largest element, after two steps."""
    mine, theirs = (build(case)[0].to(device) for _ in range(2))
    stage = Stage(mine, is_first=False, is_last=True, loss=lambda output, _: squared(output))
    worst, share = 0.0, 1.0
    for step in range(2):
        inputs = pytree.tree_map_only(Tensor, lambda x: x.to(device), draw(case, step))
        found, share = by_stage(stage, inputs)
        wanted = by_autograd(theirs, inputs)
        pairs = [
            (a, b) for x, y in zip(found, wanted, strict=True) for a, b in zip(x, y, strict=True)
        ]
        true = kept(theirs)
        pairs += [(tensor, true[name]) for name, tensor in kept(mine).items()]
        worst = max([worst, *(_relative(a, b) for a, b in pairs)])
    return worst, share


def _relative(mine: Tensor | None, theirs: Tensor | None) -> float:
    if mine is None or theirs is None:
        return 0.0 if mine is theirs else float("inf")
    if mine.is_sparse:
        mine, theirs = mine.to_dense(), theirs.to_dense()
    if mine.numel() == 0 or torch.equal(mine, theirs):
        return 0.0
    wide = torch.complex128 if mine.is_complex() else torch.float64
    mine, theirs = mine.to(wide), theirs.to(wide)
    return float((mine - theirs).abs().max() / theirs.abs().max().clamp(min=1e-30))


def split_cost(where: Where) -> dict[str, Any]:
    """`benchmarks.split_cost` on the device."""
    sizes = where.pick(
        ["--time", "16", "--width", "64", "--vocabulary", "256", "--rounds", "1", "--warmup", "2"],
        ["--batch", "4", "--time", "2048", "--width", "2048", "--vocabulary", "32000",
         "--rounds", "9", "--compile"],
    )  # fmt: skip
    dtype = where.pick("float32", "bfloat16")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "split-cost.json"
        with contextlib.redirect_stdout(io.StringIO()):
            cost.main(["--device", where.device, "--dtype", dtype, *sizes, "--json", str(path)])
        return {"rows": json.loads(path.read_text())["rows"]}
