"""Sums of gradients at home, with weight passing: of tied parameters and of several pipelines."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from synth.errors import SynthError
from synth.families import generate
from synth.profile.optimizer import OptimizerSpec
from synth.schedule.model import Schedule
from synth.schedule.sharded_pipelines import sharded_pipelines
from synth.schedule.weight_flow import Sharded
from tests.runtime.gradients import gradient_of
from tests.runtime.rank_threads import RankThreads, draw_weights, group_here

CPU = torch.device("cpu")
CLASSES, WIDTH, BATCH = 7, 5, 3
STEPS, RATE = 3, 0.05


class Embedding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shift, self.table = nn.Parameter(torch.zeros(WIDTH)), nn.Embedding(CLASSES, WIDTH)

    def forward(self, tokens_B: Tensor) -> Tensor:
        out: Tensor = self.table(tokens_B) + self.shift
        return out


class Head(nn.Module):
    """Its table is that of the embedding, among other parameters and at another place."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.table = nn.LayerNorm(WIDTH), nn.Parameter(torch.zeros(CLASSES, WIDTH))

    def forward(self, x_BD: Tensor, targets_B: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.norm(x_BD) @ self.table.T, targets_B)


def build_stages(count: int) -> list[nn.Module]:
    """The stages; both tables are equal, and parameters of their own."""
    middle = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(count - 2)]
    first, last = Embedding(), Head()
    stages = [first, *middle, last]
    draw_weights(stages, seed=3)
    with torch.no_grad():
        last.table.copy_(first.table.weight)
    return stages


def tables_of(stages: dict[int, nn.Module]) -> list[nn.Parameter]:
    """The tables of those of the stages that have one."""
    named = (dict(stage.named_parameters()) for stage in stages.values())
    return [p for each in named for name, p in each.items() if name in ("table.weight", "table")]


def build_batch(step: int, pipeline: int, count: int) -> tuple[list[Tensor], list[Tensor]]:
    draw = torch.Generator().manual_seed(100 * step + pipeline)
    tokens, targets = torch.randint(CLASSES, (2, count, BATCH), generator=draw)
    return list(tokens), list(targets)


@dataclass
class Trained:
    """Gradient norms of the steps, and the parameters after them, by stage and place."""

    norms: list[float]
    parameters: dict[int, list[Tensor]]


def trained(rank: int, size: int, schedule: Schedule, num_pipelines: int, ties: bool) -> Trained:
    """Train one rank; its parameters are those of the stages at home there, whole."""
    from synth.runtime.batch import Batch
    from synth.runtime.optimize import StepSettings, build_steps
    from synth.runtime.pipeline import Pipeline

    num_ranks, group = size // num_pipelines, group_here()
    assert group is not None
    number, own = divmod(rank, num_ranks)
    peers = None
    if num_pipelines > 1:
        peers = group.part(range(own, size, num_ranks))
        group = group.part(range(number * num_ranks, (number + 1) * num_ranks))
    stages = build_stages(schedule.placement.num_stages)
    mine = {stage: stages[stage] for stage, _ in schedule.placement.held[own]}
    # Tables start as the first rank's first one, and everything as in the first pipeline.
    if number:
        draw_weights(list(mine.values()), seed=rank)
    for stage in mine if ties else ():
        if (stage, rank) != (0, 0):
            draw_weights([nn.ParameterList(tables_of({stage: mine[stage]}))], seed=stage)
    tied = {"table": tables_of(mine)} if ties and tables_of(mine) else None
    pipeline = Pipeline(schedule, mine, group=group, data_parallel=peers, tied=tied)
    spec, settings = OptimizerSpec.parse("adamw"), StepSettings(RATE, weight_decay=0.01)
    steps = build_steps(
        pipeline.updated,
        spec,
        settings,
        device=CPU,
        group=pipeline.separate_group(),
        owned=pipeline.owns,
    )
    norms = []
    for step in range(STEPS):
        steps.begin()
        pipeline.step(Batch(*build_batch(step, number, schedule.num_micro_batches)))
        norms.append(float(pipeline.clip_grad_norm_(1e9)))
        steps.synchronize()
        for stage in pipeline.updated:
            steps.step(stage)
        assert pipeline.held_values == 0
    shared = pipeline.shared_parameters
    found: dict[int, list[Tensor]] = {}
    for number in pipeline.updated:
        for parameter in mine[number].parameters():
            whole: Any = parameter.detach()
            if parameter in shared:
                part: Any = shared[parameter].within(shared[parameter].part.detach())
                whole = part.full_tensor()
            found.setdefault(number, []).append(whole.clone())
    return Trained(norms, found)


def one_process(num_stages: int, count: int, num_pipelines: int, ties: bool) -> Trained:
    """The same by torch's AdamW: sums micro-batch by micro-batch, then of tables and pipelines."""
    stages = build_stages(num_stages)
    parameters = [p for stage in stages for p in stage.parameters()]
    first, last = tables_of(dict(enumerate(stages)))
    optimizer = torch.optim.AdamW(parameters, RATE, weight_decay=0.01, fused=True)
    norms = []
    for step in range(STEPS):
        sums = []
        for pipeline in range(num_pipelines):
            optimizer.zero_grad()
            for x, targets in zip(*build_batch(step, pipeline, count), strict=True):
                for stage in stages[:-1]:
                    x = stage(x)
                (stages[-1](x, targets) / count).backward()
            if ties:
                gradient_of(last).copy_(gradient_of(first).add_(gradient_of(last)))
            sums.append([gradient_of(p) / num_pipelines for p in parameters])
        for parameter, *parts in zip(parameters, *sums, strict=True):
            parameter.grad = sum(parts[1:], parts[0])
        counted = [p for p in parameters if not ties or p is not last]
        norms.append(float(sum(gradient_of(p).double().square().sum() for p in counted)) ** 0.5)
        optimizer.step()
    return Trained(norms, {n: [p.detach() for p in s.parameters()] for n, s in enumerate(stages)})


def check(schedule: Schedule, num_pipelines: int = 1, *, ties: bool, is_exact: bool) -> None:
    """Train on threads; parameters at all homes are those of one process, and tables are equal."""
    num_ranks, count = schedule.num_ranks, schedule.num_micro_batches
    by_rank: list[Trained] = RankThreads().run(
        trained, num_ranks * num_pipelines, schedule, num_pipelines, ties
    )
    wanted = one_process(schedule.placement.num_stages, count, num_pipelines, ties)
    rtol, atol = (0.0, 0.0) if is_exact else (1e-4, 1e-5)
    tables = []
    for each in by_rank:
        assert each.norms == pytest.approx(wanted.norms, rel=1e-5)
        for number, parameters in each.parameters.items():
            for found, true in zip(parameters, wanted.parameters[number], strict=True):
                torch.testing.assert_close(found, true, rtol=rtol, atol=atol)
                tables += [found] if found.shape == (CLASSES, WIDTH) else []
    at_home = {number for each in by_rank for number in each.parameters}
    assert at_home == set(wanted.parameters)
    if ties:
        assert all(torch.equal(table, tables[0]) for table in tables)


@pytest.mark.parametrize(
    ("num_ranks", "name", "is_exact"),
    [
        (2, "weipipe", True),
        (3, "weipipe:wzb2", True),
        (2, "mobius:2", True),
        (1, "mobius:3", True),
        (2, "roundpipe:2", False),
        (2, "tawpipe", False),
        (2, "zero3:2", False),
        (2, "zero2:1", False),
        (3, "zero1:1", False),
        # Weights stay, and one rank has both tables, as two parameters.
        (2, "zb-v", True),
    ],
)
def test_tied_parameters_are_updated_alike_at_all_homes(
    num_ranks: int, name: str, is_exact: bool
) -> None:
    check(generate(name, num_ranks, 2 * num_ranks), ties=True, is_exact=is_exact)


@pytest.mark.parametrize("level", Sharded)
def test_homes_of_tied_stages_that_are_other_ranks_have_the_same_shares(level: Sharded) -> None:
    schedule = sharded_pipelines(generate("1f1b", 2, 2), 2, level)
    check(schedule, ties=True, is_exact=False)


@pytest.mark.parametrize(
    ("name", "ties", "is_exact"),
    [
        ("weipipe", False, True),
        ("weipipe", True, True),
        ("mobius:2", False, True),
        ("roundpipe:2", True, False),
        ("zero3:1", True, False),
        ("zero2:1", False, False),
        ("zero1:1", False, False),
    ],
)
def test_pipelines_side_by_side_average_what_is_updated_at_home(
    name: str, ties: bool, is_exact: bool
) -> None:
    check(generate(name, 2, 4), 2, ties=ties, is_exact=is_exact)


def hooked(rank: int, size: int, name: str) -> tuple[list[int], bool]:
    """The stages of which a rank is told that gradients are complete, and whether they are."""
    from synth.runtime.batch import Batch
    from synth.runtime.pipeline import Pipeline

    schedule = generate(name, size, 2 * size)
    held = {stage for stage, _ in schedule.placement.held[rank]}
    stages = build_stages(schedule.placement.num_stages)
    told: dict[int, list[Tensor]] = {}

    def note(stage: int) -> None:
        told[stage] = [gradient_of(p).clone() for p in pipeline.updated[stage].parameters()]

    pipeline = Pipeline(
        schedule, {n: stages[n] for n in held}, group=group_here(), on_gradients=note
    )
    pipeline.step(Batch(*build_batch(0, 0, schedule.num_micro_batches)))
    now = {n: [gradient_of(p) for p in m.parameters()] for n, m in pipeline.updated.items()}
    same = [torch.equal(a, b) for n in now for a, b in zip(told[n], now[n], strict=True)]
    return list(told), all(same)


@pytest.mark.parametrize("name", ["weipipe", "zero3:1", "zero1:1", "mobius:2"])
def test_callers_are_told_of_gradients_at_home_once_they_are_complete(name: str) -> None:
    homes = generate(name, 2, 4).weights
    assert homes is not None
    by_rank = RankThreads().run(hooked, 2, name)
    for rank, (told, are_complete) in enumerate(by_rank):
        assert told == [n for n in range(len(homes.homes)) if homes.is_home(n, rank)]
        assert are_complete


def refusal(rank: int, size: int, mistake: str) -> str:
    from synth.runtime.pipeline import Pipeline

    stages = build_stages(size)
    tables = tables_of(dict(enumerate(stages)))
    tied: dict[str, Any] = {"table": tables}
    if mistake == "unnamed" and rank:
        tied = {"table": tables[:1]}
    elif mistake == "shape":
        tied = {"table": [tables[0], stages[-1].get_parameter("norm.weight")]}
    elif mistake == "elsewhere":
        tied = {"table": [nn.Parameter(torch.ones(2))]}
    elif mistake == "one object":
        stages[-1].table = tables[0]
        tied = {"table": tables[:1]}
    with pytest.raises(SynthError) as caught:
        Pipeline(
            generate("weipipe", size, size), dict(enumerate(stages)), group=group_here(), tied=tied
        )
    return str(caught.value)


@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        ("unnamed", "rank 1 holds stage 1, and does not name the parameter of it"),
        ("shape", r"stages 0, 1 that are tied as 'table' have different shapes"),
        ("elsewhere", "what is tied as 'table' is no parameter of this rank's stages 0, 1"),
        ("one object", "give each stage its own, and name both on each rank"),
    ],
)
def test_ties_that_do_not_fit_are_refused(mistake: str, said: str) -> None:
    assert any(said in each for each in RankThreads().run(refusal, 2, mistake))
