"""A batch that does not fit, such as a smaller last one: all ranks report the cause."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from synth.errors import SynthError
from synth.families import generate

MICRO_BATCHES = 4


def step_twice(rank: int, size: int, rows: list[int], changing: bool, first_alone: bool) -> Any:
    """Messages of a rank, by step; the second batch is smaller on all ranks or on the first."""
    from synth.runtime.pipeline import Pipeline

    torch.manual_seed(rank)
    pipeline = Pipeline(
        generate("zb-h1", size, MICRO_BATCHES),
        nn.Linear(4, 4),
        loss=nn.functional.mse_loss,
        changing_shapes=changing,
        timeout_s=30,
    )
    said = []
    for count in rows:
        x = torch.ones(rows[0] if first_alone and rank else count, 4)
        inputs: tuple[Tensor, ...] = (x,) if rank == 0 else ()
        try:
            pipeline.step(pipeline.split(*inputs, targets=x if rank == size - 1 else None))
            said.append("nothing")
        except (SynthError, RuntimeError) as error:
            said.append(str(error))
            break
    return said


@pytest.mark.parametrize("first_alone", [False, True])
@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([8, 4], "make the Pipeline with changing_shapes=True, or leave out a smaller last batch"),
        ([8, 6], "a mini-batch of 6 cannot be cut into 4 equal micro-batches"),
    ],
)
@pytest.mark.parametrize("num_ranks", [2, 3])
def test_every_rank_reads_why_a_smaller_last_batch_does_not_fit(
    pool: Any, rows: list[int], message: str, first_alone: bool, num_ranks: int
) -> None:
    for said in pool.run(step_twice, num_ranks, rows, False, first_alone):
        assert said[0] == "nothing"
        assert message in said[1]


def test_a_smaller_last_batch_fits_where_shapes_may_change(pool: Any) -> None:
    assert pool.run(step_twice, 2, [8, 4], True, False) == [["nothing"] * 2] * 2


def step_without_autograd(rank: int, size: int) -> str:
    from synth.runtime.pipeline import Pipeline

    pipeline = Pipeline(
        generate("zb-h1", size, MICRO_BATCHES), nn.Linear(4, 4), loss=nn.functional.mse_loss
    )
    x = torch.ones(MICRO_BATCHES, 4)
    with torch.set_grad_enabled(rank != 1), pytest.raises(SynthError) as caught:
        pipeline.step(pipeline.split(x, targets=x))
    return str(caught.value)


def test_every_rank_reads_that_autograd_is_off_on_one(pool: Any) -> None:
    told, said = pool.run(step_without_autograd, 2)
    assert said.startswith("a step needs autograd, which is off here")
    assert f"rank 1 failed: {said}" in told
