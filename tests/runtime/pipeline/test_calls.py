"""Ranks that make different calls of a pipeline get an error that names both calls."""

from typing import Any

import pytest
import torch
from torch import nn

from synth.errors import RunFailure
from synth.families import generate
from synth.runtime.execution.transport.calls import note_links
from synth.runtime.pipeline import Pipeline
from tests.runtime.rank_threads import draw_weights, group_here

SMALL, LARGE = 4, 6000  # features of 3 samples: through a socket, through gloo
MICRO_BATCHES = 4


class Scaled(nn.Module):
    """A stage whose tensors may be large, with a parameter of one number."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


def call(rank: int, size: int, family: str, width: int, calls: dict[int, str]) -> str:
    """Make a step and then some calls on each rank (`s`: step, `e`: evaluate, …); the error."""
    schedule = generate(family, num_ranks=size, num_micro_batches=MICRO_BATCHES)
    stages = [Scaled() for _ in range(schedule.placement.num_stages)]
    draw_weights(stages, seed=3)
    mine = {number: stages[number] for number, _ in schedule.placement.held[rank]}
    pipeline = Pipeline(
        schedule, mine, group=group_here(), loss=nn.functional.mse_loss, timeout_s=20
    )
    batch = pipeline.split(
        torch.ones(3 * MICRO_BATCHES, width), targets=torch.zeros(3 * MICRO_BATCHES, width)
    )
    try:
        pipeline.step(batch)
        for letter in calls.get(rank, calls.get(0, "")):
            if letter == "e":
                pipeline.evaluate(batch)
            elif letter == "c":
                pipeline.clip_grad_norm_(1.0)
            else:
                pipeline.step(batch, update=letter == "s")
    except RunFailure as error:
        return str(error)
    return ""


NAMES = {"s": "step()", "a": "step(update=False)", "e": "evaluate()", "c": "clip_grad_norm_()"}


def assert_named(errors: list[str], one: str, other: str) -> None:
    for error in errors:
        assert f"calls {NAMES[one]} as call 2" in error, error
        assert f"calls {NAMES[other]} as call 2" in error, error


@pytest.mark.parametrize("width", [SMALL, LARGE])
@pytest.mark.parametrize("calls", ["es", "se"])
def test_a_step_and_an_evaluation_are_told_apart(ranks: Any, width: int, calls: str) -> None:
    errors = ranks.run(call, 2, "1f1b", width, {0: calls, 1: calls[::-1]})
    assert_named(errors, "s", "e")


@pytest.mark.parametrize(("one", "other"), ["sa", "as", "ec", "cs", "ea"])
def test_any_two_calls_are_told_apart(ranks: Any, one: str, other: str) -> None:
    assert_named(ranks.run(call, 2, "zb-h1", SMALL, {0: one, 1: other}), one, other)


@pytest.mark.parametrize(
    "family", ["chimera", "zb-v", "interleaved:2", "weipipe", "zero3", "mobius:2"]
)
def test_every_kind_of_schedule_tells_calls_apart(ranks: Any, family: str) -> None:
    assert_named(ranks.run(call, 2, family, SMALL, {0: "s", 1: "e"}), "s", "e")


@pytest.mark.parametrize("odd", range(3))
def test_all_ranks_are_told_of_the_one_that_differs(ranks: Any, odd: int) -> None:
    calls = {rank: "es" if rank == odd else "se" for rank in range(3)}
    assert_named(ranks.run(call, 3, "1f1b", SMALL, calls), "s", "e")


@pytest.mark.parametrize("last", ["s", "e"])
@pytest.mark.parametrize("fewer", [0, 1])
def test_a_rank_that_ends_before_a_call_is_named_with_the_call(
    ranks: Any, last: str, fewer: int
) -> None:
    errors = ranks.run(call, 2, "1f1b", SMALL, {fewer: "s", 1 - fewer: "s" + last})
    assert errors[fewer] == ""
    assert (
        f"in call 3 of its pipeline, {NAMES[last]}, which rank {fewer} has not begun"
        in (errors[1 - fewer])
    )


def test_equal_calls_go_on(ranks: Any) -> None:
    assert ranks.run(call, 3, "zb-h1", SMALL, {0: "aasceeesc"}) == [""] * 3
    assert ranks.run(call, 2, "zero3", SMALL, {0: "aaseeesc"}) == [""] * 2


def test_notes_go_around_each_group_of_ranks_that_meets() -> None:
    assert note_links([(0, 1)], [(0, 1, 2), (1, 3), (2,)]) == [
        (0, 1),
        (1, 2),
        (1, 3),
        (2, 0),
        (3, 1),
    ]
