"""`synth run` of models whose layers share parameters: memory as planned, losses of one process."""

from pathlib import Path
from typing import Any

import pytest
import torch

from synth.errors import Mismatch
from synth.families import generate
from synth.profile import Profile
from synth.profile.optimizer import OptimizerSpec
from synth.profile.workload import Workload
from synth.run_options.train_options import TrainOptions
from synth.runtime.checkpoint import CheckpointOptions
from synth.runtime.profiling.profile_model import profile_model
from synth.runtime.rank_result import RankResult
from synth.runtime.training.building import build_stages
from synth.runtime.training.trainer import RankTrainer
from synth.runtime.world import World
from synth.schedule.files.plan_file import Plan
from synth.schedule.model import Placement, Schedule
from synth.schedule.ops import Op
from synth.schedule.weight_versions import BackwardReads, ForwardReads, WeightVersions

CPU = torch.device("cpu")
TABLE_BYTES = 1024 * 32 * 4
# The table dominates all else. The blocks share a core, too.
MODEL = """
from torch import nn
class Head(nn.Module):
    def __init__(self, table):
        super().__init__()
        self.norm, self.out = nn.LayerNorm(32), nn.Linear(32, 1024, bias=False)
        self.out.weight = table.weight
    def forward(self, x, targets):
        return nn.functional.cross_entropy(self.out(self.norm(x)).flatten(0, 1), targets.flatten())
class Block(nn.Module):
    def __init__(self, core):
        super().__init__()
        self.norm, self.core = nn.LayerNorm(32), core
    def forward(self, x):
        return x + self.core(self.norm(x))
def layers():
    table = nn.Embedding(1024, 32)
    return [table, *(Block(nn.Linear(32, 32)) for _ in range(6)), Head(table)]
def shared():
    core = nn.Sequential(nn.Linear(32, 512), nn.GELU(), nn.Linear(512, 32))
    table = nn.Embedding(1024, 32)
    return [table, *(Block(core) for _ in range(6)), Head(table)]
def apart():
    first, last = nn.Embedding(1024, 32), nn.Embedding(1024, 32)
    return [first, *(Block(nn.Linear(32, 32)) for _ in range(6)), Head(last)]
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("model") / "tied.py"
    file.write_text(MODEL)
    return file


def profiled(file: Path, name: str) -> Profile:
    workload = Workload(
        model=f"{file}:{name}",
        micro_batch_size=1,
        sequence_length=4,
        optimizer=OptimizerSpec.parse("adamw"),
    )
    return profile_model(workload, CPU, warmup=0, iterations=1)


@pytest.fixture(scope="module")
def profile(model: Path) -> Profile:
    return profiled(model, "layers")


@pytest.fixture(scope="module")
def shared_profile(model: Path) -> Profile:
    return profiled(model, "shared")


@pytest.fixture
def options(tmp_path: Path) -> TrainOptions:
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog. " * 60)
    return TrainOptions(data=text, steps=3)


def train(rank: int, world_size: int, plan: str, options: TrainOptions) -> RankResult:
    loaded = Plan.from_json(plan)
    world = World(rank, world_size, CPU, "gloo", "here", 2)
    return RankTrainer(loaded, loaded.check()[0], options, world).train()


def run(pool: Any, plan: Plan, options: TrainOptions, pipelines: int = 1) -> list[RankResult]:
    options = options.replace(model=plan.workload.model, data_parallel=pipelines)
    found: list[RankResult] = pool.run(train, plan.num_ranks * pipelines, plan.to_json(), options)
    return found


def plan_of(profile: Profile, name: str, num_ranks: int) -> Plan:
    """A published family, in equal stages."""
    schedule = generate(name, num_ranks, 4)
    num_stages = schedule.placement.num_stages
    return Plan.of(profile, (8 // num_stages,) * num_stages, schedule)


def alone(profile: Profile, sizes: tuple[int, ...], backward: tuple[str, ...]) -> Plan:
    """A plan for one rank, whose backwards consist of these ops."""
    stages = range(len(sizes))
    program = [
        Op.parse(f"{kind}{stage}.{j}")
        for j in range(4)
        for kind in ("F", *backward)
        for stage in (stages if kind == "F" else reversed(stages))
    ]
    where = Placement(((0,) * len(sizes),))
    return Plan.of(profile, sizes, Schedule(where, 4, (tuple(program),), "alone"))


def check_memory(plan: Plan, results: list[RankResult]) -> None:
    for rank, result in enumerate(results[: plan.num_ranks]):
        planned = plan.claim.peak_bytes[rank]
        assert 0.97 * planned < result.peak_bytes <= planned


def test_a_profile_names_what_layers_share(profile: Profile, shared_profile: Profile) -> None:
    assert profile.tied_parameters is not None and shared_profile.tied_parameters is not None
    (table,) = profile.tied_parameters
    assert table.layers == ("Embedding.0", "Head.7")
    assert table.parameter_bytes == table.gradient_bytes == TABLE_BYTES
    assert 2 * TABLE_BYTES <= table.optimizer_bytes <= 2 * TABLE_BYTES + 8
    core = next(t for t in shared_profile.tied_parameters if len(t.layers) == 6)
    assert core.parameter_bytes == (32 * 512 + 512 + 512 * 32 + 32) * 4
    assert core.largest_bytes == 32 * 512 * 4
    for tied in (table, core):
        steps = [
            layer.time_us[kind].median_us
            for layer in profile.layer_profiles.values()
            for kind in layer.time_us
            if kind == "STEP"
        ]
        assert tied.step_us > 0
        assert tied is core or tied.step_us <= max(steps)


@pytest.mark.parametrize(
    ("name", "num_ranks"),
    [("zb-v", 2), ("chimera", 2), ("1f1b", 2), pytest.param("1f1b", 4, marks=pytest.mark.slow)],
)
def test_a_rank_holds_what_its_layers_share_once_as_planned(
    pool: Any, profile: Profile, options: TrainOptions, name: str, num_ranks: int
) -> None:
    expected = run(pool, alone(profile, (8,), ("BW",)), options)
    plan = plan_of(profile, name, num_ranks)
    results = run(pool, plan, options)
    assert results[0].losses == pytest.approx(expected[0].losses, rel=1e-5)
    check_memory(plan, results)
    # The same plan without ties claims a table, its gradient and two moments more on a rank.
    unaware = plan_of(profile.replace(tied_parameters=None), name, num_ranks)
    if name in ("zb-v", "chimera"):
        assert results[0].peak_bytes + 3 * TABLE_BYTES < unaware.claim.peak_bytes[0]
        assert run(pool, unaware, options)[0].losses == results[0].losses


@pytest.mark.parametrize("backward", [("BW",), ("B", "W")])
@pytest.mark.parametrize("sizes", [(8,), (4, 4)])
@pytest.mark.parametrize("name", ["profile", "shared_profile"])
def test_layers_of_a_stage_that_share_need_the_sum_of_their_gradients(
    pool: Any,
    request: pytest.FixtureRequest,
    options: TrainOptions,
    name: str,
    sizes: tuple[int, ...],
    backward: tuple[str, ...],
) -> None:
    plan = alone(request.getfixturevalue(name), sizes, backward)
    check_memory(plan, run(pool, plan, options))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["zb-v", "chimera"])
def test_they_train_in_data_parallel_pipelines_and_from_checkpoints_of_other_plans(
    pool: Any, profile: Profile, options: TrainOptions, tmp_path: Path, name: str
) -> None:
    plan, other = plan_of(profile, name, 2), plan_of(profile, "1f1b", 2)
    expected = run(pool, other, options.replace(steps=4))[0].losses
    saving = CheckpointOptions(folder=tmp_path / "saved", every=2)
    begun = run(pool, plan, options.replace(steps=2, checkpoint=saving))[0].losses
    again = options.replace(steps=4, checkpoint=saving.replace(resume=True))
    assert begun + run(pool, other, again)[0].losses == pytest.approx(expected, rel=1e-5)
    side_by_side = run(pool, plan, options, pipelines=2)
    assert side_by_side[0].losses == pytest.approx(
        run(pool, other, options, pipelines=2)[0].losses, rel=1e-5
    )
    for rank, result in enumerate(side_by_side[:2]):
        # Averaging over pipelines takes small buffers that no plan counts.
        assert result.peak_bytes <= plan.claim.peak_bytes[rank] + 4096


def test_a_model_that_shares_no_more_is_refused(model: Path, profile: Profile) -> None:
    plan = plan_of(profile, "zb-v", 2)
    changed = plan.replace(workload=plan.workload.replace(model=f"{model}:apart"))
    with pytest.raises(Mismatch, match=r"rank 0 \(stages 0, 3\) holds .* the plan counts"):
        build_stages(changed, 0, CPU, seed=0, model=changed.workload.model)
    plan = plan_of(profile, "1f1b", 2)  # whose ranks hold one of the stages
    changed = plan.replace(workload=plan.workload.replace(model=f"{model}:apart"))
    with pytest.raises(Mismatch, match="stages 0 and 1 share parameters in the plan"):
        build_stages(changed, 0, CPU, seed=0, model=changed.workload.model)


def test_stages_of_a_rank_that_share_are_refused_where_weights_have_versions(
    pool: Any, profile: Profile, options: TrainOptions
) -> None:
    program = "F0.0 F1.0 BW1.0 STEP1.0 BW0.0 STEP0.0 F0.1 F1.1 BW1.1 STEP1.1 BW0.1 STEP0.1"
    ops = tuple(map(Op.parse, program.split()))
    rule = WeightVersions(1, ForwardReads.NEWEST, BackwardReads.NEWEST)
    where = Placement(((0, 0),))
    plan = Plan.of(profile, (4, 4), Schedule(where, 2, (ops,), "one rank", versions=rule))
    with pytest.raises(Exception, match="stages of a rank share parameters"):
        run(pool, plan, options)
    # Within one stage they are one parameter of that stage.
    alone_in_stage = generate("paci", 1, 2)
    run(pool, Plan.of(profile, (8,), alone_in_stage), options)
