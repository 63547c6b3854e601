"""Gradients that ranks add up: dense, sparse, or on some ranks none at all."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from synth.errors import SynthError
from synth.families import generate
from synth.runtime.execution.gradients.layout import GradientLayout

WIDTH = 4
SPARSE = ("table.weight",)


class Routed(nn.Module):
    """Layers of which a rank may use none: sparse tables, one of them with a dense use as well."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.table = nn.Embedding(8, WIDTH, sparse=True)
        self.shared = nn.Embedding(8, WIDTH, sparse=True)
        self.head = nn.Linear(WIDTH, 8, bias=False)
        self.head.weight = self.shared.weight
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, ids: Tensor) -> Tensor:
        rows = self.out(self.first(torch.ones(len(ids), WIDTH)))
        if bool((ids < 4).any()):
            rows = rows + self.table(ids)
        if bool((ids >= 4).any()):
            rows = rows + self.shared(ids)
        if bool((ids >= 6).any()):
            rows = rows + self.head(rows).sum(1, keepdim=True)
        return rows


def build() -> tuple[Routed, nn.Linear]:
    torch.manual_seed(3)
    return Routed(), nn.Linear(WIDTH, WIDTH)


def train(rank: int, size: int, ids: list[int], are_copies: bool) -> dict[str, Any]:
    """Gradients of two pipelines of one rank each, or of two copies of a stage in one pipeline."""
    from torch.distributed.device_mesh import init_device_mesh

    from synth.runtime.pipeline import Pipeline

    mesh = init_device_mesh("cpu", (1, 2) if are_copies else (2, 1), mesh_dim_names=("dp", "pp"))
    routed, last = build()
    if are_copies:
        schedule = generate("chimera", num_ranks=2, num_micro_batches=2)
        pipeline = Pipeline(
            schedule, {0: routed, 1: last}, group=mesh["pp"], loss=nn.functional.mse_loss
        )
        mine = ids
    else:
        schedule = generate("zb-h1", num_ranks=1, num_micro_batches=2)
        pipeline = Pipeline(
            schedule,
            [routed, last],
            group=mesh["pp"],
            data_parallel=mesh["dp"],
            loss=nn.functional.mse_loss,
        )
        mine = ids[2 * rank : 2 * rank + 2]
    pipeline.step(pipeline.split(torch.tensor(mine), targets=torch.ones(len(mine), WIDTH)))
    return {
        name: None if p.grad is None else (p.grad.is_sparse, p.grad.to_dense())
        for name, p in routed.named_parameters()
    }


@pytest.mark.parametrize("are_copies", [False, True])
@pytest.mark.parametrize("ids", [[0, 1, 4, 5], [0, 1, 6, 7], [4, 5, 6, 7], [1, 1, 2, 3]])
def test_gradients_that_only_some_ranks_have_are_added_up_in_one_layout(
    pool: Any, ids: list[int], are_copies: bool
) -> None:
    routed, last = build()
    for chunk in torch.tensor(ids).chunk(2 if are_copies else 4):
        loss = nn.functional.mse_loss(last(routed(chunk)), torch.ones(len(chunk), WIDTH))
        (loss * len(chunk) / len(ids)).backward()
    wanted = {name: p.grad for name, p in routed.named_parameters()}
    for found in pool.run(train, 2, ids, are_copies):
        assert found.keys() == wanted.keys()
        for name, true in wanted.items():
            if found[name] is None:
                assert true is None
                continue
            is_sparse, gradient = found[name]
            assert is_sparse == (name in SPARSE)
            true = torch.zeros(gradient.shape) if true is None else true.to_dense()
            torch.testing.assert_close(gradient, true)


def test_tables_are_sparse_unless_something_else_adds_to_them() -> None:
    routed, _ = build()
    layout = GradientLayout([routed])
    sparse = {name for name, p in routed.named_parameters() if layout.is_sparse(p)}
    assert sparse == set(SPARSE)
    tied = GradientLayout([routed], [routed.table.weight])
    assert not any(tied.is_sparse(p) for p in routed.parameters())
    assert layout.kinds_of([routed.table.weight]) == [
        f"[8, {WIDTH}] torch.float32 with sparse gradients"
    ]
    assert layout.gradient_of(routed.table.weight).to_dense().count_nonzero() == 0
    assert layout.gradient_of(routed.head.weight).layout == torch.strided


def test_a_table_that_forwards_change_is_refused_where_several_ranks_hold_it() -> None:
    table = nn.Embedding(8, WIDTH, max_norm=1.0)
    layout = GradientLayout([nn.Sequential(table, nn.Linear(WIDTH, WIDTH))])
    layout.check_same_after_forward(nn.Linear(WIDTH, WIDTH).parameters())
    with pytest.raises(SynthError, match="max_norm"):
        layout.check_same_after_forward(table.parameters())


def make_two_copies(rank: int, size: int) -> None:
    from synth.runtime.pipeline import Pipeline

    stages = {0: nn.Embedding(8, WIDTH, max_norm=1.0), 1: nn.Linear(WIDTH, WIDTH)}
    with pytest.raises(SynthError, match="max_norm"):
        Pipeline(generate("chimera", num_ranks=2, num_micro_batches=2), stages)


def test_copies_of_a_stage_with_such_a_table_are_refused(pool: Any) -> None:
    pool.run(make_two_copies, 2)
