"""Parameters that are added, replaced, frozen or changed by forwards while a pipeline holds them.

Where every rank has its own stages and nothing moves, such programs train as in one process. Where
weights move, have versions or have copies on several ranks, they are refused before a wrong step.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from synth.errors import RunFailure, SynthError
from synth.families import generate
from synth.profile.optimizer import OptimizerKind, OptimizerSpec
from tests.runtime.rank_threads import RankThreads, draw_weights, group_here

WIDTH, MICRO_BATCHES = 4, 4
MOVING = ["weipipe", "weipipe:wzb2", "zero3:1", "zero1:1", "mobius"]


class Stage(nn.Module):
    """A layer, and perhaps an adapter beside it; forwards may change what they use."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.adapter: nn.Module = nn.Identity()
        self.table = nn.Parameter(torch.eye(WIDTH), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        self.change()
        return torch.tanh(self.linear(x) + self.adapter(x) + x @ self.table)

    def change(self) -> None:
        """Change a parameter."""


class Clamps(Stage):
    def change(self) -> None:
        with torch.no_grad():
            self.linear.weight.clamp_(-0.1, 0.1)


class Decays(Stage):
    def change(self) -> None:
        self.linear.weight.data.mul_(0.9)


class Replaces(Stage):
    def change(self) -> None:
        self.table.data = self.table.data * 0.5


Edit = Callable[[Stage], Any]


def adapt(stage: Stage) -> None:
    stage.adapter = nn.Linear(WIDTH, WIDTH)
    draw_weights([stage.adapter], seed=9)


def replace(stage: Stage) -> None:
    stage.linear.weight = nn.Parameter(stage.linear.weight.detach() * 0.5)


def freeze(stage: Stage) -> None:
    stage.linear.weight.requires_grad_(False)


def unfreeze(stage: Stage) -> None:
    stage.table.requires_grad_(True)


def swap(stage: Stage) -> None:
    stage.linear.weight.data = stage.linear.weight.data * 0.5


EDITS = {each.__name__: each for each in (adapt, replace, freeze, unfreeze, swap)}


def build(kind: type[Stage], count: int) -> list[Stage]:
    stages = [kind() for _ in range(count)]
    draw_weights(stages, seed=4)
    return stages


def draw(step: int) -> tuple[list[Tensor], list[Tensor]]:
    generator = torch.Generator().manual_seed(step)
    both = [torch.randn(3, WIDTH, generator=generator) for _ in range(2 * MICRO_BATCHES)]
    return both[:MICRO_BATCHES], both[MICRO_BATCHES:]


Found = dict[int, dict[str, Tensor | None]]


def gradients(stages: dict[int, Stage]) -> Found:
    return {n: {k: p.grad for k, p in s.named_parameters()} for n, s in stages.items()}


def trained(
    rank: int, size: int, family: str, kind: type[Stage], edit: str | None, evaluates: bool
) -> Found:
    """Two steps, the second one after an edit of each stage."""
    from synth.runtime.batch import Batch
    from synth.runtime.optimize import StepSettings, build_flush_free_step
    from synth.runtime.pipeline import Pipeline

    schedule = generate(family, num_ranks=size, num_micro_batches=MICRO_BATCHES)
    stages = build(kind, schedule.placement.num_stages)
    mine = {n: stages[n] for n, _ in schedule.placement.held[rank]}
    loss = nn.functional.mse_loss
    pipeline = Pipeline(schedule, mine, group=group_here(), loss=loss, timeout_s=60)
    if schedule.versions is not None:
        pipeline.stepper = build_flush_free_step(
            {n: s.module for n, s in pipeline.stages.items()},
            OptimizerSpec(kind=OptimizerKind.SGD),
            StepSettings(0.1),
            delays=pipeline.delays,
            device=torch.device("cpu"),
        )
    pipeline.step(Batch(*draw(0)))
    for stage in mine.values():
        if edit is not None:
            EDITS[edit](stage)
    if evaluates:
        pipeline.evaluate(Batch(*draw(1)))
    pipeline.step(Batch(*draw(1)))
    return gradients(mine)


def by_torch(count: int, kind: type[Stage], edit: str) -> Found:
    stages = build(kind, count)
    for step in range(2):
        for x, target in zip(*draw(step), strict=True):
            for stage in stages:
                x = stage(x)
            (nn.functional.mse_loss(x, target) / MICRO_BATCHES).backward()
        if not step:
            for stage in stages:
                EDITS[edit](stage)
    return gradients(dict(enumerate(stages)))


def assert_alike(found: Found, wanted: Found) -> None:
    for number, by_name in found.items():
        assert by_name.keys() == wanted[number].keys()
        for name, gradient in by_name.items():
            true = wanted[number][name]
            assert (gradient is None) == (true is None), name
            if gradient is not None:
                torch.testing.assert_close(gradient, true)


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("family", ["zb-h1", "interleaved:2,recompute"])
def test_stages_that_stay_may_be_edited_between_steps(family: str, edit: str) -> None:
    wanted = by_torch(generate(family, 2, MICRO_BATCHES).placement.num_stages, Stage, edit)
    for found in RankThreads().run(trained, 2, family, Stage, edit, True):
        assert_alike(found, wanted)


@pytest.mark.parametrize("edit", ["freeze", "unfreeze", "swap"])
def test_copies_may_be_frozen_and_given_other_memory(edit: str) -> None:
    wanted = by_torch(2, Stage, edit)
    for found in RankThreads().run(trained, 2, "chimera", Stage, edit, True):
        assert_alike(found, wanted)


REASONS = {
    "adapt": r"stage \d has new parameters \(adapter.weight, adapter.bias\) since the Pipeline was",
    "replace": r"stage \d has new parameters \(linear.weight\) since the Pipeline was made",
    "freeze": r"stage \d has parameters frozen or unfrozen \(linear.weight\) since the",
    "unfreeze": r"stage \d has parameters frozen or unfrozen \(table\) since the Pipeline was made",
    "swap": r"the parameter linear.weight of stage \d was given other memory",
}


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("family", MOVING)
def test_edits_of_weights_that_move_are_refused(family: str, edit: str) -> None:
    for evaluates in (False, True):
        with pytest.raises(SynthError, match=REASONS[edit]):
            RankThreads().run(trained, 2, family, Stage, edit, evaluates)


@pytest.mark.parametrize("edit", ["adapt", "replace"])
def test_new_parameters_of_copies_are_refused(edit: str) -> None:
    with pytest.raises(SynthError, match="new parameters since the Pipeline was made, which made"):
        RankThreads().run(trained, 2, "chimera", Stage, edit, False)


@pytest.mark.parametrize("edit", ["adapt", "replace", "freeze", "unfreeze"])
def test_edits_of_weights_with_versions_are_refused(edit: str) -> None:
    with pytest.raises(SynthError, match="trains other parameters than when the Pipeline was"):
        RankThreads().run(trained, 2, "2bw", Stage, edit, False)


def with_peers(rank: int, size: int) -> str:
    from synth.runtime.batch import Batch
    from synth.runtime.pipeline import Pipeline

    everyone = group_here()
    assert everyone is not None
    schedule, stage = generate("1f1b", 1, MICRO_BATCHES), build(Stage, 1)[0]
    pipeline = Pipeline(
        schedule,
        stage,
        group=everyone.part([rank]),
        data_parallel=everyone,
        loss=nn.functional.mse_loss,
        timeout_s=60,
    )
    pipeline.step(Batch(*draw(0)))
    adapt(stage)
    with pytest.raises(SynthError) as caught:
        pipeline.step(Batch(*draw(1)))
    return str(caught.value)


def test_new_parameters_of_data_parallel_pipelines_are_refused() -> None:
    said = "stage 0 has new parameters since the Pipeline was made, which gave all data-parallel"
    assert all(said in told for told in RankThreads().run(with_peers, 2))


@pytest.mark.parametrize("kind", [Clamps, Decays, Replaces])
@pytest.mark.parametrize("family", ["weipipe", "weipipe:wzb2", "zero3:1", "mobius"])
def test_forwards_that_change_weights_that_move_are_refused(family: str, kind: type[Stage]) -> None:
    with pytest.raises(RunFailure, match=r"a forward changes a parameter of shape \[4, 4\], which"):
        RankThreads().run(trained, 2, family, kind, None, False)


@pytest.mark.parametrize("kind", [Clamps, Decays])
def test_forwards_that_change_an_older_version_are_refused(kind: type[Stage]) -> None:
    with pytest.raises(RunFailure, match="of which it reads an older version that is dropped"):
        RankThreads().run(trained, 2, "2bw:every=2", kind, None, False)


def tied(rank: int, size: int, family: str, replaces: bool) -> list[Tensor | None]:
    """The gradients of what a rank ties, after two steps without zeroing."""
    from synth.runtime.batch import Batch
    from synth.runtime.pipeline import Pipeline

    schedule = generate(family, num_ranks=size, num_micro_batches=MICRO_BATCHES)
    last = schedule.placement.num_stages - 1
    stages = build(Stage, last + 1)
    mine = {n: stages[n] for n, _ in schedule.placement.held[rank]}
    tables = [mine[n].linear.weight for n in (0, last) if n in mine]
    shared = [table for table in tables if isinstance(table, nn.Parameter)]
    pipeline = Pipeline(
        schedule,
        mine,
        group=group_here(),
        loss=nn.functional.mse_loss,
        tied={"shared": shared} if shared else None,
        timeout_s=60,
    )
    for step in range(2):
        pipeline.step(Batch(*draw(step)))
        if replaces:
            for n in {0, last} & mine.keys():
                replace(mine[n])
    return [p.grad for p in shared]


@pytest.mark.parametrize("family", ["1f1b", "zb-v", "chimera"])
def test_tied_gradients_accumulate_over_steps(family: str) -> None:
    count = generate(family, 2, MICRO_BATCHES).placement.num_stages
    stages = build(Stage, count)
    stages[-1].linear.weight = stages[0].linear.weight
    for step in range(2):
        for x, target in zip(*draw(step), strict=True):
            for stage in stages:
                x = stage(x)
            (nn.functional.mse_loss(x, target) / MICRO_BATCHES).backward()
    for found in RankThreads().run(tied, 2, family, False):
        for gradient in found:
            torch.testing.assert_close(gradient, stages[0].linear.weight.grad)


def test_a_tied_parameter_that_was_replaced_is_refused() -> None:
    with pytest.raises(SynthError, match=r"a tied parameter of stage . was replaced since the"):
        RankThreads().run(tied, 2, "1f1b", True)


def accumulated(rank: int, size: int, family: str) -> Found:
    """Gradients of three steps without zeroing, of which the first accumulates only."""
    from synth.runtime.batch import Batch
    from synth.runtime.pipeline import Pipeline

    schedule = generate(family, num_ranks=size, num_micro_batches=MICRO_BATCHES)
    stages = build(Stage, schedule.placement.num_stages)
    mine = {n: stages[n] for n, _ in schedule.placement.held[rank]}
    pipeline = Pipeline(
        schedule, mine, group=group_here(), loss=nn.functional.mse_loss, timeout_s=60
    )
    for stage in mine.values():
        stage.linear.weight.pow(2).sum().backward()
    for step, update in enumerate((False, True, True)):
        pipeline.step(Batch(*draw(step)), update=update)
        pipeline.evaluate(Batch(*draw(step)))
    return gradients(mine)


@pytest.mark.parametrize("family", ["1f1b", "chimera", "dualpipe"])
def test_gradients_of_copies_accumulate_over_steps(family: str) -> None:
    stages = build(Stage, generate(family, 2, MICRO_BATCHES).placement.num_stages)
    for stage in stages:
        stage.linear.weight.pow(2).sum().backward()
    for step in range(3):
        for x, target in zip(*draw(step), strict=True):
            for stage in stages:
                x = stage(x)
            (nn.functional.mse_loss(x, target) / MICRO_BATCHES).backward()
    wanted = gradients(dict(enumerate(stages)))
    for found in RankThreads().run(accumulated, 2, family):
        assert_alike(found, wanted)


def hooked(rank: int, size: int, family: str, hook: str) -> None:
    """A step with a hook on the complete gradient of each weight."""
    from synth.runtime.batch import Batch
    from synth.runtime.pipeline import Pipeline

    def update(parameter: Tensor) -> None:
        with torch.no_grad():
            parameter.mul_(0.9)

    def take(parameter: Tensor) -> None:
        parameter.grad = None

    schedule = generate(family, num_ranks=size, num_micro_batches=MICRO_BATCHES)
    stages = build(Stage, schedule.placement.num_stages)
    mine = {n: stages[n] for n, _ in schedule.placement.held[rank]}
    for stage in mine.values():
        stage.linear.weight.register_post_accumulate_grad_hook(
            {"update": update, "take": take}[hook]
        )
    pipeline = Pipeline(
        schedule, mine, group=group_here(), loss=nn.functional.mse_loss, timeout_s=60
    )
    pipeline.step(Batch(*draw(0)))


HOOKED = {
    ("weipipe", "update"): "a hook in a backward changes a parameter of shape",
    ("weipipe:wzb2", "update"): "a hook in a backward changes a parameter of shape",
    ("zero1:1", "update"): "a hook in a backward changes a parameter of shape",
    ("zero1:1", "take"): "a hook in a backward takes the gradient of a parameter",
    ("zero2:1", "update"): "a hook in a backward changes a parameter of shape",
    ("weipipe", "take"): "a hook in a backward takes the gradient of a parameter",
    ("weipipe:wzb2", "take"): "a hook in a backward takes the gradient of a parameter",
    ("gpipe:recompute", "update"): "changed between a forward and its recomputation",
    ("chimera", "update"): "several ranks or stages hold was changed within a step",
}


@pytest.mark.parametrize(("family", "hook"), HOOKED)
def test_hooks_that_a_schedule_cannot_follow_are_refused(family: str, hook: str) -> None:
    with pytest.raises((RunFailure, SynthError), match=HOOKED[family, hook]):
        RankThreads().run(hooked, 2, family, hook)
