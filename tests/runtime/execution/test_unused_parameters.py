"""Parameters that no micro-batch uses have no gradient in stages with copies, as in one process."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from synth.families import generate
from synth.runtime.execution.gradients.unused import begin_sums, have_no_terms
from tests.runtime.rank_threads import RankThreads, draw_weights, group_here

WIDTH, MICRO_BATCHES = 4, 8


class Experts(nn.Module):
    """A layer, an expert for some inputs only, one that no input chooses, and a frozen one."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.rare = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.unused, self.frozen = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.frozen.requires_grad_(False)

    def forward(self, x: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.tanh(self.frozen(self.inner(x)))
        return (y + self.rare(x) if int(chosen) else y), chosen


def loss_of(output: tuple[Tensor, Tensor], target: Tensor) -> Tensor:
    return nn.functional.mse_loss(output[0], target)


def build(count: int) -> list[nn.Module]:
    stages: list[nn.Module] = [Experts() for _ in range(count)]
    draw_weights(stages, seed=4)
    return stages


def draw() -> tuple[list[tuple[Tensor, Tensor]], list[Tensor]]:
    """Micro-batches, of which only the first chooses the rare expert: so only one copy uses it."""
    generator = torch.Generator().manual_seed(6)
    inputs = [torch.randn(2, WIDTH, generator=generator) for _ in range(MICRO_BATCHES)]
    chosen = [torch.tensor(int(j == 0)) for j in range(MICRO_BATCHES)]
    targets = [torch.randn(2, WIDTH, generator=generator) for _ in range(MICRO_BATCHES)]
    return list(zip(inputs, chosen, strict=True)), targets


Found = dict[int, list[Tensor | None]]


def trained(rank: int, size: int, family: str) -> tuple[Found, Found]:
    """Gradients and updated parameters of a rank's stages, by number."""
    from synth.runtime.batch import Batch
    from synth.runtime.pipeline import Pipeline

    schedule = generate(family, num_ranks=size, num_micro_batches=MICRO_BATCHES)
    stages = build(schedule.placement.num_stages)
    mine = {number: stages[number] for number, _ in schedule.placement.held[rank]}
    pipeline = Pipeline(schedule, mine, group=group_here(), loss=loss_of, timeout_s=60)
    parameters = [p for module in mine.values() for p in module.parameters()]
    optimizer = torch.optim.AdamW(parameters, 0.1, weight_decay=0.5)
    pipeline.step(Batch(*draw()))
    gradients: Found = {n: [p.grad for p in m.parameters()] for n, m in mine.items()}
    optimizer.step()
    return gradients, {n: [p.detach() for p in m.parameters()] for n, m in mine.items()}


def by_torch(count: int) -> tuple[Found, Found]:
    stages = build(count)
    optimizer = torch.optim.AdamW(
        [p for stage in stages for p in stage.parameters()], 0.1, weight_decay=0.5
    )
    for given, target in zip(*draw(), strict=True):
        for stage in stages:
            given = stage(*given)
        (loss_of(given, target) / MICRO_BATCHES).backward()
    gradients: Found = {n: [p.grad for p in s.parameters()] for n, s in enumerate(stages)}
    optimizer.step()
    return gradients, {n: [p.detach() for p in s.parameters()] for n, s in enumerate(stages)}


@pytest.mark.parametrize("family", ["chimera", "dualpipe"])
def test_weight_decay_moves_what_it_moves_in_one_process(ranks: Any, family: str) -> None:
    count = generate(family, num_ranks=2, num_micro_batches=MICRO_BATCHES).placement.num_stages
    wanted, wanted_values = by_torch(count)
    for gradients, values in ranks.run(trained, 2, family):
        assert gradients.keys() == values.keys()
        for number, found in gradients.items():
            assert [g is None for g in found] == [g is None for g in wanted[number]]
            assert [g is None for g in found] == [False] * 4 + [True] * 4
            torch.testing.assert_close(values[number], wanted_values[number])


def tied(rank: int, size: int, used_on: int | None) -> Tensor | None:
    """The gradient of a parameter that both ranks tie, and that one of them uses or none."""
    from synth.runtime.pipeline import Pipeline

    class Stage(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.table = nn.Linear(WIDTH, WIDTH), nn.Parameter(torch.ones(WIDTH))

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.inner(x)
            return self.table * y if rank == used_on else y

    stage = Stage()
    draw_weights([stage], seed=rank)
    pipeline = Pipeline(
        generate("1f1b", num_ranks=size, num_micro_batches=2),
        stage,
        group=group_here(),
        loss=nn.functional.mse_loss,
        tied={"table": stage.table},
        timeout_s=60,
    )
    pipeline.step(pipeline.split(torch.ones(2, WIDTH), targets=torch.zeros(2, WIDTH)))
    return stage.table.grad


def test_a_tied_parameter_has_a_gradient_on_all_ranks_or_on_none(ranks: Any) -> None:
    assert ranks.run(tied, 2, None) == [None, None]
    one, other = ranks.run(tied, 2, 1)
    assert one is not None and one.any()
    torch.testing.assert_close(one, other)


def trained_at_home(rank: int, size: int, family: str) -> Found:
    """The parameters of the stages that are updated on a rank with weight passing, by number."""
    from synth.runtime.batch import Batch
    from synth.runtime.pipeline import Pipeline

    schedule = generate(family, num_ranks=size, num_micro_batches=MICRO_BATCHES)
    stages = build(schedule.placement.num_stages)
    mine = {number: stages[number] for number, _ in schedule.placement.held[rank]}
    pipeline = Pipeline(schedule, mine, group=group_here(), loss=loss_of, timeout_s=60)
    parameters = [p for module in pipeline.updated.values() for p in module.parameters()]
    optimizer = torch.optim.AdamW(parameters, 0.1, weight_decay=0.5)
    for _ in range(2):
        pipeline.step(Batch(*draw()))
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
    shared = pipeline.shared_parameters
    found: Found = {}
    for number in pipeline.updated:
        values: list[Tensor | None] = []
        for parameter in mine[number].parameters():
            whole: Any = parameter.detach()
            if parameter in shared:
                part = shared[parameter].part.detach()
                flat: Any = shared[parameter].within(part)
                whole = flat.full_tensor()
            values.append(whole)
        found[number] = values
    return found


@pytest.mark.parametrize("family", ["weipipe", "tawpipe", "mobius:2", "roundpipe"])
def test_weight_decay_moves_what_it_moves_in_one_process_with_passed_weights(
    ranks: Any, family: str
) -> None:
    """Of the unused parameters neither the gradient nor its sum over ranks is zeros, but None."""
    count = generate(family, num_ranks=2, num_micro_batches=MICRO_BATCHES).placement.num_stages
    stages = build(count)
    optimizer = torch.optim.AdamW(
        [p for stage in stages for p in stage.parameters()], 0.1, weight_decay=0.5
    )
    for _ in range(2):
        for given, target in zip(*draw(), strict=True):
            for stage in stages:
                given = stage(*given)
            (loss_of(given, target) / MICRO_BATCHES).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
    found = {
        n: values for each in ranks.run(trained_at_home, 2, family) for n, values in each.items()
    }
    assert found.keys() == set(range(count))
    for number, values in found.items():
        torch.testing.assert_close(values, [p.detach() for p in stages[number].parameters()])


@pytest.mark.parametrize("family", ["zero1", "zero2", "zero3"])
def test_unused_parameters_of_shared_stages_are_named(family: str) -> None:
    with pytest.warns(UserWarning, match="no micro-batch used unused.weight, unused.bias of stage"):
        RankThreads().run(trained_at_home, 2, family)


def test_only_sums_without_terms_are_minus_zero_everywhere() -> None:
    sums = [torch.empty(3), torch.empty(2), torch.empty(0), torch.empty(2, dtype=torch.complex64)]
    begin_sums(sums)
    assert have_no_terms(sums) == [True] * 4
    sums[0].add_(torch.zeros(3))
    sums[1][1] += 2
    assert have_no_terms(sums) == [False, False, True, True]
    assert sums[1].tolist() == [0, 2]
