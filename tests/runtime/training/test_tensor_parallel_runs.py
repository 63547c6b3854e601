"""Plans whose ranks are groups of processes: data × pipeline × tensor, from the plan file."""

import json
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from synth.errors import SynthError
from synth.families import generate
from synth.profile import Profile
from synth.profile.workload import Workload
from synth.run_options.checkpoint_options import CheckpointOptions
from synth.run_options.train_options import TrainOptions
from synth.schedule.files.plan_file import Plan
from synth.schedule.model import Schedule
from tests.runtime.gloo_pool import GlooPool

CPU = torch.device("cpu")
TINY: dict[str, Any] = {
    "vocabulary_size": 128, "width": 16, "num_blocks": 3, "num_heads": 4, "context_length": 32,
}  # fmt: skip
LLAMA = TINY | {"num_kv_heads": 2, "hidden_width": 24}
MICRO_BATCHES = 4


def workload_of(model: str, optimizer: str = "adamw") -> Workload:
    arguments = LLAMA if model == "llama" else TINY
    return Workload.model_validate(
        {
            "model": model, "arguments": arguments, "micro_batch_size": 2, "sequence_length": 8,
            "optimizer": optimizer, "group": {"tensor": 2},
        }
    )  # fmt: skip


def begin() -> None:
    """Forget what torch has cached of an equal mesh in an earlier process group."""
    from torch.distributed.tensor.debug import _clear_sharding_prop_cache

    _clear_sharding_prop_cache()


def measure(rank: int, size: int, text: str) -> str:
    """Profile a workload on a group, as `synth profile --tensor-parallel` does."""
    from synth.runtime.profiling.profile_model import profile_model
    from synth.runtime.profiling.rank_processes import RankProcesses

    begin()
    workload = Workload.model_validate_json(text)
    processes = RankProcesses.of_world(CPU, None)
    profile = profile_model(workload, CPU, warmup=0, iterations=2, processes=processes)
    return json.dumps(profile.to_data())


@cache
def profile_of(pool: GlooPool, model: str, optimizer: str) -> Profile:
    """A profile, which both processes have."""
    texts = pool.run(measure, 2, workload_of(model, optimizer).model_dump_json())
    first, second = (Profile.from_json(text) for text in texts)
    assert first.layer_profiles == second.layer_profiles
    return first


@pytest.fixture(scope="module")
def llama(pool: GlooPool) -> Profile:
    """A Llama that two processes have divided."""
    return profile_of(pool, "llama", "adamw")


def saved(profile: Profile, name: str, path: Path) -> Plan:
    """Save a plan of a family, or of the solver."""
    if name == "solved":
        plan = solved(profile)
    else:
        plan = plan_of(profile, generate(name, 2, MICRO_BATCHES))
    plan.save(path)
    return plan


def plan_of(profile: Profile, schedule: Schedule) -> Plan:
    """A plan with stages of about as many layers each."""
    count, stages = len(profile.layers), schedule.placement.num_stages
    cuts = [round(stage * count / stages) for stage in range(stages + 1)]
    return Plan.of(profile, [b - a for a, b in pairwise(cuts)], schedule)


@contextmanager
def in_double() -> Iterator[None]:
    """Let the head compute its loss in float64, not in float32."""
    narrow = torch.Tensor.float
    torch.Tensor.float = torch.Tensor.double  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.Tensor.float = narrow  # type: ignore[method-assign]


def draw(pipelines: int) -> list[list[tuple[Tensor, Tensor]]]:
    """Micro-batches of token ids and targets, by pipeline."""
    generator = torch.Generator().manual_seed(1)
    draws = [torch.randint(128, (2, 8), generator=generator) for _ in range(8 * pipelines)]
    pairs = list(zip(draws[::2], draws[1::2], strict=True))
    return [pairs[n * MICRO_BATCHES : (n + 1) * MICRO_BATCHES] for n in range(pipelines)]


def whole(tensor: Tensor | None) -> Tensor:
    assert tensor is not None
    found: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return found


Found = tuple[float | None, float, dict[str, list[Tensor]], int]


def gradients(rank: int, size: int, path: Path, pipelines: int) -> Found:
    """This process's loss, the global norm, the gradients by layer, and what B left to W."""
    from synth.runtime.execution.stage.stage import Stage
    from synth.runtime.pipeline import Pipeline
    from synth.runtime.training.building import build_stages
    from synth.runtime.training.process_grid import Place
    from synth.runtime.world import World

    begin()
    plan = Plan.load(path)
    world = World(rank, size, CPU, "gloo", "here", 2)
    place = Place.of(world, plan.mesh(pipelines))
    built = build_stages(plan, place.rank, CPU, 0, divide=place.division(None))
    for stage in built.stages.values():
        stage.module.double()
    deferred = []
    backward_weight = Stage.backward_weight

    def count(stage: Stage, microbatch: int) -> None:
        deferred.append(len(stage.deferred(microbatch)))
        backward_weight(stage, microbatch)

    patched: Any = Stage
    patched.backward_weight = count
    try:
        pipeline = Pipeline(plan, built.stages, group=place.ranks, data_parallel=place.peers)
        inputs, targets = zip(*draw(pipelines)[place.pipeline], strict=True)
        batch = pipeline.split(torch.cat(inputs), targets=torch.cat(targets))
        with in_double():
            loss = pipeline.step(batch)
    finally:
        patched.backward_weight = backward_weight
    norm = float(pipeline.clip_grad_norm_(1e9))
    layers = {
        plan.layers[index]: [whole(p.grad) for p in layer.parameters()]
        for number, stage in built.stages.items()
        for index, layer in zip(plan.layers_of(number), stage.layers, strict=True)
    }
    return None if loss is None else float(loss.detach()), norm, layers, sum(deferred)


def of_one_process(plan: Plan, pipelines: int) -> tuple[list[float], float, list[list[Tensor]]]:
    """The loss of each pipeline, the norm and the gradients of the model in one process."""
    from synth.runtime.input_function import spec_of
    from synth.runtime.models import build_model

    layers = list(
        build_model(spec_of(plan.workload, plan.workload.model, None), seed=0).layers.values()
    )
    losses = []
    for layer in layers:
        layer.double()
    for batches in draw(pipelines):
        losses.append(0.0)
        for x, y in batches:
            for layer in layers[:-1]:
                x = layer(x)
            with in_double():
                loss = layers[-1](x, y) / MICRO_BATCHES
            (loss / pipelines).backward()
            losses[-1] += float(loss.detach())
    found = [[whole(p.grad) for p in layer.parameters()] for layer in layers]
    norm = torch.stack([g.norm() for each in found for g in each]).norm()
    return losses, float(norm), found


def check(plan: Plan, found: Sequence[Found], pipelines: int) -> None:
    """Compare every process with one that has the whole model."""
    losses, norm, wanted = of_one_process(plan, pipelines)
    mesh = plan.mesh(pipelines)
    last = plan.schedule().placement.rank_of(len(plan.partition) - 1)
    seen = set()
    for process, (loss, its_norm, layers, _) in enumerate(found):
        place = mesh.place(process)
        if place.rank == last:
            assert loss == pytest.approx(losses[place.pipeline], rel=1e-6)  # a sum in float32
        assert its_norm == pytest.approx(norm, rel=1e-12)
        for name, its_gradients in layers.items():
            seen.add(name)
            for mine, true in zip(its_gradients, wanted[plan.layers.index(name)], strict=True):
                torch.testing.assert_close(mine, true, rtol=1e-10, atol=1e-14)
    assert seen == set(plan.layers)


def solved(profile: Profile) -> Plan:
    """A plan of the solver."""
    import synth

    plan = synth.solve(
        profile, ranks=2, micro_batches=MICRO_BATCHES, placement="linear", time_limit=2.0
    )
    assert isinstance(plan, Plan)
    return plan


@pytest.mark.parametrize("name", ["1f1b", "zb-h1", "interleaved:2", "zb-v", "solved"])
@pytest.mark.slow
def test_gradients_and_norms_equal_those_of_one_process(
    pool: GlooPool, llama: Profile, tmp_path: Path, name: str
) -> None:
    path = tmp_path / "plan.json"
    plan = saved(llama, name, path)
    found = pool.run(gradients, 4, path, 1)
    check(plan, found, 1)
    if name.startswith("zb"):  # seven matrices of each block, and the head's, wait for W
        for _, _, layers, deferred in found:
            assert deferred >= MICRO_BATCHES * 7 * sum("block" in name for name in layers)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["1f1b", "zb-h1", "interleaved:2", "solved"])
def test_two_pipelines_of_two_ranks_of_two_processes_have_the_gradients_of_one(
    pool: GlooPool, llama: Profile, tmp_path: Path, name: str
) -> None:
    path = tmp_path / "plan.json"
    plan = saved(llama, name, path)
    check(plan, pool.run(gradients, 8, path, 2), 2)


def test_a_model_whose_attention_stays_whole_has_the_gradients_of_one_process(
    pool: GlooPool, tmp_path: Path
) -> None:
    path = tmp_path / "plan.json"
    plan = saved(profile_of(pool, "gpt", "adamw"), "zb-h1", path)
    check(plan, pool.run(gradients, 4, path, 1), 1)


@pytest.mark.slow
def test_a_process_holds_half_of_what_is_divided(llama: Profile) -> None:
    block = llama.layer_profiles["block.0"]
    matrices = (2 * 16 * 16 + 2 * 16 * 8 + 3 * 16 * 24) // 2
    assert block.parameter_bytes == block.gradient_bytes == 4 * (matrices + 2 * 16)
    assert llama.layer_profiles["head"].parameter_bytes == 4 * (16 * 128 // 2 + 16)
    tokens, products = 2 * 8, 2 * matrices
    attention = 2 * 2 * 8 * 8 * 2 * 16 // 2  # scores and their product with V, of half the heads
    assert block.forward_flops == products * tokens + attention
    assert llama.layer_profiles["embedding"].parameter_bytes == 4 * 16 * 128


@pytest.mark.slow
def test_the_device_holds_one_whole_layer_at_a_time(llama: Profile) -> None:
    from synth.runtime.models import build_model
    from synth.runtime.training.building import build_stages

    plan = plan_of(llama, generate("1f1b", 2, MICRO_BATCHES))
    layers: list[Any] = []
    on_device: list[int] = []

    def build(*arguments: Any, **keywords: Any) -> Any:
        made = build_model(*arguments, **keywords)
        layers.extend(made.layers.values())
        return made

    def divide(given: Any) -> None:
        on_device.append(sum(p.is_meta for layer in layers for p in layer.parameters()))
        for layer in given:
            layer.to_empty(device="cpu")

    with pytest.raises(SynthError, match="static bytes"):  # as nothing is divided
        build_stages(plan, 0, torch.device("meta"), 0, build=build, divide=divide)
    assert on_device == [len(list(layer.parameters())) for layer in layers]
    assert len(layers) == len(plan.layers_of(0))


def train(rank: int, size: int, path: Path, options: str) -> tuple[list[float], list[Tensor]]:
    """The losses of a run and its parameters at the end, as on every process."""
    from synth.runtime.training.trainer import RankTrainer
    from synth.runtime.world import World

    begin()
    plan = Plan.load(path)
    world = World(rank, size, CPU, "gloo", "here", 2)
    given = TrainOptions.model_validate_json(options)
    trainer = RankTrainer(plan, plan.check()[0], given, world)
    losses = trainer.train().losses
    modules = trainer._layers_by_name()
    ordered = [modules[name] for name in plan.layers if name in modules]
    return losses, [whole(p).detach() for layer in ordered for p in layer.parameters()]


def ways_to_train(text: Path, **more: Any) -> str:
    """Options with clipping that does clip."""
    given = {"data": text, "steps": 4, "clip_norm": 0.3, **more}
    return TrainOptions.model_validate(given).model_dump_json()


def whole_stages(rank: int, size: int, path: Path) -> list[str]:
    """Return the warnings of a Pipeline about stages that no group has divided."""
    from synth.runtime.input_function import spec_of
    from synth.runtime.models import build_model
    from synth.runtime.pipeline import Pipeline

    plan = Plan.load(path)
    layers = build_model(spec_of(plan.workload, plan.workload.model, None), seed=0).layers
    held = sorted({stage for stage, _ in plan.schedule().placement.held[rank]})
    stages = {n: [layers[i] for i in plan.layers_of(n)] for n in held}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Pipeline(plan, stages)
    return [str(each.message) for each in caught]


@pytest.mark.slow
def test_a_pipeline_warns_of_stages_that_are_whole(
    pool: GlooPool, llama: Profile, tmp_path: Path
) -> None:
    path = tmp_path / "plan.json"
    plan = saved(llama, "1f1b", path)
    for rank, said in enumerate(pool.run(whole_stages, 2, path)):
        assert [f"the stages of rank {rank} are whole: " in each for each in said] == [True]
    without_groups(plan).save(path)
    assert pool.run(whole_stages, 2, path) == [[], []]


def without_groups(plan: Plan) -> Plan:
    """The same order for ranks of one process, whose layers are whole."""
    profile = profile_of_one(plan.workload.replace(group=None).model_dump_json())
    return Plan.of(profile, plan.partition, plan.schedule())


@cache
def profile_of_one(text: str) -> Profile:
    """A profile of a workload on one process."""
    from synth.runtime.profiling.profile_model import profile_model

    workload = Workload.model_validate_json(text)
    return profile_model(workload, CPU, warmup=0, iterations=1)


@pytest.mark.parametrize("optimizer", ["adamw", "sgd:0.9"])
def test_a_run_learns_what_a_run_of_single_processes_learns(
    pool: GlooPool, tmp_path: Path, text: Path, optimizer: str
) -> None:
    path, single = tmp_path / "plan.json", tmp_path / "single.json"
    plan = saved(profile_of(pool, "llama", optimizer), "zb-h1", path)
    without_groups(plan).save(single)
    options = ways_to_train(text)
    wanted = pool.run(train, 2, single, options)
    parameters = [p for _, found in wanted for p in found]
    found = pool.run(train, 4, path, options)
    assert all(losses == pytest.approx(wanted[0][0], rel=1e-5) for losses, _ in found)
    for member in range(2):
        mine = [p for _, of_rank in found[member::2] for p in of_rank]
        for one, true in zip(mine, parameters, strict=True):
            torch.testing.assert_close(one, true, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_checkpoint_of_groups_is_one_of_single_processes_and_back(
    pool: GlooPool, llama: Profile, tmp_path: Path, text: Path
) -> None:
    path, single = tmp_path / "plan.json", tmp_path / "single.json"
    without_groups(saved(llama, "1f1b", path)).save(single)
    whole_run = pool.run(train, 2, single, ways_to_train(text))[0][0]
    for first, second in ((path, single), (single, path)):
        folder = tmp_path / f"from-{first.stem}"
        parts: list[float] = []
        for plan, steps, resume in ((first, 2, False), (second, 4, True)):
            kept = CheckpointOptions(folder=folder, resume=resume)
            options = ways_to_train(text, steps=steps, checkpoint=kept)
            parts += pool.run(train, 4 if plan is path else 2, plan, options)[0][0]
        assert parts == pytest.approx(whole_run, rel=1e-5)


@pytest.mark.parametrize(("written", "optimizer"), [("hf", "adamw"), ("dcp", "sgd:0.9")])
def test_weights_of_groups_are_those_of_single_processes_and_back(
    pool: GlooPool, tmp_path: Path, text: Path, written: str, optimizer: str
) -> None:
    path, single = tmp_path / "plan.json", tmp_path / "single.json"
    plan = saved(profile_of(pool, "llama", optimizer), "1f1b", path)
    without_groups(plan).save(single)
    whole_run = pool.run(train, 2, single, ways_to_train(text, steps=2))
    parameters = [p for _, found in whole_run for p in found]
    folder = tmp_path / "first"
    for number, (first, second) in enumerate(((path, single), (single, path))):
        folder = tmp_path / f"weights-{number}"
        files = {"export_weights": folder, "export_format": written}
        pool.run(
            train, 4 if first is path else 2, first, ways_to_train(text, steps=2, weights=files)
        )
        again = ways_to_train(
            text, steps=1, learning_rate={"peak": 0.0}, weights={"weights_from": folder}
        )
        found = pool.run(train, 4 if second is path else 2, second, again)
        for member in range(2 if second is path else 1):
            every = found[member :: len(found) // 2]
            mine = [p for _, of_rank in every for p in of_rank]
            for one, true in zip(mine, parameters, strict=True):
                torch.testing.assert_close(one, true, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"look_ahead": 2}, "with which --look-ahead does not go together"),
        ({"switches": {"post_validation": True}}, "with which post-validation does not go"),
    ],
    ids=["look-ahead", "post-validation"],
)
@pytest.mark.slow
def test_what_groups_do_not_do_is_refused(
    llama: Profile, text: Path, more: dict[str, Any], message: str
) -> None:
    from synth.runtime.training.process_grid import mesh_of

    plan = plan_of(llama, generate("1f1b", 2, MICRO_BATCHES))
    options = TrainOptions.model_validate({"data": text, **more})
    with pytest.raises(SynthError, match=message):
        mesh_of(plan, options)


def test_sharded_stages_do_not_look_ahead() -> None:
    from synth.runtime.pipeline.connections import _look_ahead

    own = {"to_local": lambda self: self}
    sharded: Tensor = torch.ones(1).as_subclass(type("DTensor", (Tensor,), own))
    parts: Any = SimpleNamespace(stages={0: SimpleNamespace(parameters=lambda: [sharded])})
    watched: Any = object()
    with pytest.raises(SynthError, match="need the same order on all processes"):
        _look_ahead(parts, 2, watched)


@pytest.mark.slow
def test_a_function_that_divides_layers_needs_ranks_of_several_processes(
    llama: Profile, text: Path
) -> None:
    from synth.runtime.training.process_grid import mesh_of

    plan = without_groups(plan_of(llama, generate("1f1b", 2, MICRO_BATCHES)))
    options = TrainOptions(data=text, parallelize="mine.py:divide")
    with pytest.raises(SynthError, match="each rank of the plan is one process"):
        mesh_of(plan, options)


@pytest.mark.slow
def test_a_group_is_not_rehearsed_by_one_process(llama: Profile, text: Path) -> None:
    from synth.runtime.rehearsal import rehearse

    plan = plan_of(llama, generate("1f1b", 2, MICRO_BATCHES))
    with pytest.raises(SynthError, match="a group of 2 devices"):
        rehearse(plan, plan.check()[0], TrainOptions(data=text), CPU)


OWN = """
from torch import nn
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 12), nn.Linear(12, 8)
    def forward(self, x):
        return x + self.down(self.up(x).tanh())

class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(8, 128)
    def forward(self, x, targets):
        return nn.functional.cross_entropy(self.out(x).flatten(0, 1), targets.flatten())

class HeadNorm(Block):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(6)
    def forward(self, x):
        heads = self.up(x).unflatten(-1, (-1, 6))
        return x + self.down(self.norm(heads).flatten(-2))

def layers():
    return [nn.Embedding(128, 8), Block(), Block(), Head()]

def normed():
    return [nn.Embedding(128, 8), HeadNorm(), Head()]

def divide(layer, mesh):
    if isinstance(layer, Block):
        parallelize_module(layer, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})

def wrap(layer, mesh):
    return nn.Sequential(layer)

def slice_plainly(layer, mesh):
    if isinstance(layer, Block):
        layer.up.weight = nn.Parameter(layer.up.weight.detach().chunk(mesh.size())[0])
"""


def measure_own(rank: int, size: int, file: Path, layers: str = "layers") -> str:
    """Profile a user's model on a group, by the user's function."""
    from synth.runtime.profiling.profile_model import profile_model
    from synth.runtime.profiling.rank_processes import RankProcesses

    begin()
    workload = Workload.model_validate(
        {
            "model": f"{file}:{layers}", "micro_batch_size": 2, "sequence_length": 8,
            "group": {"tensor": 2},
        }
    )  # fmt: skip
    processes = RankProcesses.of_world(CPU, f"{file}:divide")
    profile = profile_model(workload, CPU, warmup=0, iterations=1, processes=processes)
    return json.dumps(profile.to_data())


def refused_profile(rank: int, size: int, file: Path) -> str:
    """Return the error about a norm of this process's heads that stays whole."""
    with pytest.raises(SynthError) as refused:
        measure_own(rank, size, file, "normed")
    return str(refused.value)


def refusals(rank: int, size: int, file: Path) -> list[str]:
    """Return the errors about layers that cannot be divided, and about functions that may not."""
    from torch.distributed.device_mesh import init_device_mesh

    from synth.runtime.models import ModelSpec, build_model
    from synth.runtime.models.tensor_parallel import divide_layers

    begin()
    mesh = init_device_mesh("cpu", (size,), mesh_dim_names=("tp",))
    own = build_model(ModelSpec(f"{file}:layers"), seed=0).layers.values()
    uneven = build_model(ModelSpec("llama", TINY | {"num_kv_heads": 1}), seed=0).layers.values()
    said = []
    sliced = build_model(ModelSpec(f"{file}:layers"), seed=0).layers.values()
    for layers, address in (
        (own, None), (own, f"{file}:wrap"), (uneven, None), (sliced, f"{file}:slice_plainly")
    ):  # fmt: skip
        with pytest.raises(SynthError) as refused:
            divide_layers(layers, mesh, address)
        said.append(str(refused.value))
    return said


def test_a_model_of_the_users_is_divided_by_the_users_function(
    pool: GlooPool, tmp_path: Path, text: Path
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(OWN)
    profile = Profile.from_json(pool.run(measure_own, 2, file)[0])
    block = profile.layer_profiles["Block.1"].parameter_bytes
    assert block == 4 * (8 * 12 + 12 // 2 + 8)
    path, single = tmp_path / "plan.json", tmp_path / "single.json"
    without_groups(saved(profile, "zb-h1", path)).save(single)
    model = f"{file}:layers"
    wanted = pool.run(train, 2, single, ways_to_train(text, model=model))[0][0]
    divided = ways_to_train(text, model=model, parallelize=f"{file}:divide")
    assert all(
        losses == pytest.approx(wanted, rel=1e-5) for losses, _ in pool.run(train, 4, path, divided)
    )
    for said in pool.run(refusals, 2, file):
        assert "how 2 processes divide a layer of class Embedding" in said[0]
        assert "returned another module" in said[1]
        assert "1 heads of keys and values, which 2 processes" in said[2]
        assert "a plain tensor of shape [6, 8] in place of [12, 8]" in said[3]
    for error in pool.run(refused_profile, 2, file):
        assert "'HeadNorm.1', as it is divided, has another gradient of norm.weight" in error
