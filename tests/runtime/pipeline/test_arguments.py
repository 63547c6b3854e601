"""Arguments of a pipeline's methods that are refused by a message, and not by accident."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from synth import Chunk
from synth.errors import RunFailure, SynthError
from synth.families import generate
from synth.runtime.batch import Batch
from synth.runtime.execution.transport.in_process.ranks import run_ranks
from synth.runtime.pipeline import Pipeline

X, T = torch.ones(4, 2), torch.zeros(4, 2)


def run(
    call: Callable[[Pipeline, int], Any],
    *,
    loss: Callable[[Any, Any], Any] = nn.functional.mse_loss,
    family: str = "1f1b",
    ranks: int = 2,
) -> list[Any]:
    """Call a function on each rank with its pipeline."""
    schedule = generate(family, ranks, 2)
    stages = [nn.Linear(2, 2) for _ in range(ranks)]

    def on_rank(group: Any) -> Any:
        stage = stages[group.rank]
        return call(Pipeline(schedule, stage, group=group, loss=loss, timeout_s=10), group.rank)

    return run_ranks(ranks, on_rank, timeout_s=20)


@pytest.mark.parametrize("given", [[], [None], nn.Linear, lambda x: x, "stage"])
def test_what_is_no_module_is_refused(given: Any) -> None:
    with pytest.raises(SynthError, match=r"stage 0 was given .*; give a module, or a list"):
        run_ranks(1, lambda group: Pipeline(generate("1f1b", 1, 2), {0: given}, group=group))


def test_a_module_list_runs_one_after_another() -> None:
    stage = nn.ModuleList([nn.Linear(2, 2), nn.Flatten(0)])

    def train(group: Any) -> Any:
        pipeline = Pipeline(generate("1f1b", 1, 2), stage, group=group, loss=nn.functional.mse_loss)
        return pipeline.step(pipeline.split(X, targets=Chunk(T.flatten())))

    (loss,) = run_ranks(1, train)
    torch.testing.assert_close(loss, stage[0](X).square().mean().detach())


@pytest.mark.parametrize("family", ["chimera", "zero:1", "pipedream"])
def test_a_loss_with_parameters_is_refused_where_gradients_are_summed(family: str) -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(2))

        def forward(self, output: Tensor, targets: Tensor) -> Tensor:
            return nn.functional.mse_loss(output * self.scale, targets)

    schedule = generate(family, 2, 4)

    def on_rank(group: Any) -> None:
        held = schedule.placement.held[group.rank]
        stages = {number: nn.Linear(2, 2) for number, _ in held}
        Pipeline(schedule, stages, group=group, loss=Scaled(), timeout_s=10)

    with pytest.raises(SynthError, match="the loss has the trained parameter scale"):
        run_ranks(2, on_rank, timeout_s=20)


def test_a_step_within_a_cache_of_parametrizations_is_refused() -> None:
    def cached(pipeline: Pipeline, _: int) -> Any:
        with parametrize.cached():
            return pipeline.step(pipeline.split(X, targets=T))

    with pytest.raises(SynthError, match=r"within parametrize\.cached\(\)"):
        run(cached, ranks=1)


@pytest.mark.parametrize("given", [None, 3, [0, 1]])
def test_what_is_no_schedule_is_refused(given: Any) -> None:
    with pytest.raises(SynthError, match="give a Plan, its file, or a Schedule"):
        run_ranks(1, lambda group: Pipeline(given, nn.Linear(2, 2), group=group))


@pytest.mark.parametrize("call", [Pipeline.step, Pipeline.evaluate])
@pytest.mark.parametrize("given", [None, X, (X, T), {"inputs": X}])
def test_what_is_no_batch_is_refused(given: Any, call: Callable[[Pipeline, Any], Any]) -> None:
    with pytest.raises(SynthError, match=r"the batch is a \w+; give a Batch, as"):
        run(lambda pipeline, _: call(pipeline, given))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"weight": "1"}, "weight is a str '1'; give a number"),
        ({"weight": torch.ones(2)}, r"weight is a Tensor of shape \[2\]"),
        ({"weights": 0.5}, "weights is a float; give a list or a tensor"),
        ({"weights": "ab"}, "weights is a str"),
        ({"weights": {0: 1.0, 1: 2.0}}, "weights is a dict"),
        ({"weights": torch.ones(2, 1)}, r"weights\[0\] is a Tensor of shape \[1\]"),
        ({"weights": [1.0, None]}, r"weights\[1\] is a NoneType"),
        ({"losses": True}, "losses is a bool; give a list"),
        ({"outputs": ()}, "outputs is a tuple; give a list"),
    ],
)
def test_weights_and_lists_of_other_types_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(SynthError, match=said):
        run(lambda pipeline, _: pipeline.step(pipeline.split(X, targets=T), **options))


@pytest.mark.parametrize("count", [0, -1, "4", 2.0])
def test_a_number_of_micro_batches_is_a_whole_number(count: Any) -> None:
    with pytest.raises(SynthError, match="micro-batches; give a whole number, 1 or more"):
        Batch.split(count, X)


def test_a_number_of_micro_batches_may_be_numpy_s() -> None:
    assert Batch.split(np.int64(2), X).num_samples == len(X)  # type: ignore[arg-type]


def test_a_chunk_is_cut_along_a_whole_number() -> None:
    with pytest.raises(SynthError, match=r"inputs\[0\] is a Chunk along dimension 1.0"):
        Batch.split(2, Chunk(X, 1.0))  # type: ignore[arg-type]


@pytest.mark.parametrize("max_norm", [float("nan"), -1.0, "1"])
def test_a_norm_to_clip_to_is_a_number_from_0_on(max_norm: Any) -> None:
    with pytest.raises(SynthError, match="as the largest norm; give a number, 0 or more"):
        run(lambda pipeline, _: pipeline.clip_grad_norm_(max_norm))


def test_ranks_that_clip_to_different_norms_are_told() -> None:
    said = r"calls clip_grad_norm_\(\) with (0.5|0.25) where rank \d gives (0.25|0.5)"
    with pytest.raises(RunFailure, match=said):
        run(lambda pipeline, rank: pipeline.clip_grad_norm_(0.5 / (1 + rank)))


@pytest.mark.parametrize("rows", [2, 8])
def test_a_later_batch_of_another_size_on_one_rank_is_refused(rows: int) -> None:
    """Targets of one row for each micro-batch would be broadcast over its two outputs."""

    def train(pipeline: Pipeline, rank: int) -> None:
        pipeline.step(pipeline.split(X, targets=T))
        count = 4 if rank == 0 else rows
        pipeline.step(pipeline.split(torch.ones(count, 2), targets=torch.zeros(count, 2)))

    said = f"was cut from {rows} samples, the first stage's at the first step from 4"
    with pytest.raises(SynthError, match=said):
        run(train)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("family", ["1f1b", "zb-h1"])
def test_a_loss_without_a_gradient_is_refused(ranks: int, family: str) -> None:
    def loss(output: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.mse_loss(output, targets).detach()

    with pytest.raises(RunFailure, match="the loss requires no gradient"):
        run(
            lambda pipeline, _: pipeline.step(pipeline.split(X, targets=T)),
            loss=loss,
            family=family,
            ranks=ranks,
        )


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (KeyError("mask"), "F1.0: KeyError: 'mask'"),
        (AssertionError(), "F1.0: AssertionError"),
        (RuntimeError("shapes differ"), "F1.0: shapes differ"),
    ],
)
def test_errors_are_named_by_their_type_where_the_message_may_say_too_little(
    error: Exception, said: str
) -> None:
    def loss(output: Tensor, targets: Tensor) -> Tensor:
        raise error

    with pytest.raises(RunFailure) as found:
        run(lambda pipeline, _: pipeline.step(pipeline.split(X, targets=T)), loss=loss)
    assert said in str(found.value)


def test_a_batch_that_another_module_computes_goes_on_behind_the_step() -> None:
    torch.manual_seed(0)
    encoder, mean = nn.Sequential(nn.Linear(2, 2), nn.Tanh()), nn.functional.mse_loss

    def attached(pipeline: Pipeline, _: int) -> Any:
        return pipeline.step(pipeline.split(encoder(X), targets=T))

    with pytest.raises(RunFailure, match="micro-batches share a part of a graph"):
        run(attached, ranks=1)

    stages: list[Any] = []

    def apart(pipeline: Pipeline, _: int) -> None:
        stages.extend(pipeline.stages.values())
        y = encoder(X)
        x = y.detach().requires_grad_()
        pipeline.step(pipeline.split(x, targets=T))
        y.backward(x.grad)

    encoder.zero_grad()
    run(apart, ranks=1)
    found = [p.grad for p in encoder.parameters()]
    encoder.zero_grad()
    (stage,) = stages
    mean(stage.module(encoder(X)), T).backward()
    torch.testing.assert_close(found, [p.grad for p in encoder.parameters()])
