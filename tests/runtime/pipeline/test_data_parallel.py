"""Data-parallel wrappers inside stages, two pipelines of two ranks: gradients of one process."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from synth.families import generate
from synth.schedule.model import Schedule
from tests.runtime.gradients import gradient_of

WIDTH, BATCH, MICRO_BATCHES, STEPS = 6, 3, 4, 3
REPLICAS = 2
FAMILIES = ["gpipe", "1f1b", "zb-h1", "interleaved:2", "zb-v"]


class Block(nn.Module):
    """Weights with and without a rule, one that is used in both ways, and a channels-last one."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)
        mix = nn.Conv2d(1, 2, (1, 3), padding=(0, 1))
        # torch has no annotation of this overload of `to`.
        self.mix = mix.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.outer = nn.Linear(WIDTH, WIDTH)
        self.gate = nn.Parameter(torch.randn(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self.inner(x)) @ self.outer.weight
        mixed = self.mix(x.view(-1, 1, 1, WIDTH)).sum(1).flatten(1)
        return self.norm(self.outer(y) * self.gate + mixed)


def build_stages(count: int) -> list[nn.Module]:
    torch.manual_seed(2)
    return [Block() for _ in range(count)]


def draw(step: int, replica: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets of a replica's mini-batch."""
    generator = torch.Generator().manual_seed(100 * step + replica)
    shape = (MICRO_BATCHES * BATCH, WIDTH)
    return torch.randn(shape, generator=generator), torch.randn(shape, generator=generator)


def train_plainly(count: int) -> list[list[Tensor]]:
    """Parameters by stage after some steps of one process on the batches of all replicas."""
    stages = build_stages(count)
    model = nn.Sequential(*stages)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(STEPS):
        for replica in range(REPLICAS):
            for x, y in zip(*(t.chunk(MICRO_BATCHES) for t in draw(step, replica)), strict=True):
                loss = nn.functional.mse_loss(model(x), y)
                (loss / MICRO_BATCHES / REPLICAS).backward()
        optimizer.step()
        optimizer.zero_grad()
    return [[p.detach() for p in stage.parameters()] for stage in stages]


Wrap = Callable[[nn.Module, Any], nn.Module]


def leave_plain(stage: nn.Module, mesh: Any) -> nn.Module:
    """The pipeline averages by itself; peers need not start equal."""
    if mesh.get_local_rank():
        for parameter in stage.parameters():
            nn.init.zeros_(parameter)
    return stage


def wrap_ddp(stage: nn.Module, mesh: Any, **options: Any) -> nn.Module:
    from torch.nn.parallel import DistributedDataParallel

    return DistributedDataParallel(stage, process_group=mesh.get_group(), **options)


def wrap_ddp_inside(stage: nn.Module, mesh: Any) -> nn.Module:
    return nn.Sequential(wrap_ddp(stage, mesh), nn.Identity())


def wrap_ddp_with_small_buckets(stage: nn.Module, mesh: Any) -> nn.Module:
    return wrap_ddp(stage, mesh, bucket_cap_mb=1e-4, gradient_as_bucket_view=True)


def wrap_ddp_with_views(stage: nn.Module, mesh: Any) -> nn.Module:
    """Gradients are parts of one memory, and stay so."""
    return wrap_ddp(stage, mesh, gradient_as_bucket_view=True)


def wrap_ddp_finding_unused(stage: nn.Module, mesh: Any) -> nn.Module:
    return wrap_ddp(stage, mesh, find_unused_parameters=True)


def wrap_ddp_with_a_hook(stage: nn.Module, mesh: Any) -> nn.Module:
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    wrapped: Any = wrap_ddp(stage, mesh)
    wrapped.register_comm_hook(mesh.get_group(), allreduce_hook)
    return wrapped


def wrap_fsdp(stage: nn.Module, mesh: Any, **options: Any) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    fully_shard(stage.inner, mesh=mesh, **options)  # type: ignore[arg-type]
    fully_shard(stage, mesh=mesh, **options)
    return stage


def wrap_fsdp_resharding(stage: nn.Module, mesh: Any) -> nn.Module:
    return wrap_fsdp(stage, mesh, reshard_after_forward=True)


def wrap_fsdp_keeping(stage: nn.Module, mesh: Any) -> nn.Module:
    return wrap_fsdp(stage, mesh, reshard_after_forward=False)


def wrap_fsdp_inside(stage: nn.Module, mesh: Any) -> nn.Module:
    """The stage's own module is not sharded."""
    return nn.Sequential(wrap_fsdp(stage, mesh), nn.Identity())


WRAPS = [
    leave_plain,
    wrap_ddp,
    wrap_ddp_inside,
    wrap_ddp_with_small_buckets,
    wrap_ddp_with_views,
    wrap_ddp_finding_unused,
    wrap_ddp_with_a_hook,
    wrap_fsdp_resharding,
    wrap_fsdp_keeping,
    wrap_fsdp_inside,
]


def train(
    rank: int, size: int, schedule: Schedule, wrap: str, accumulate: int = 1
) -> dict[int, list[Tensor]]:
    """This process's stages after some steps, by number."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor

    from synth.runtime.pipeline import Pipeline

    mesh = init_device_mesh("cpu", (REPLICAS, 2), mesh_dim_names=("dp", "pp"))
    stages = build_stages(schedule.placement.num_stages)
    mine = {stage for stage, _ in schedule.placement.held[mesh["pp"].get_local_rank()]}
    wrapped = {s: globals()[wrap](stages[s], mesh["dp"]) for s in mine}
    is_plain = wrap == "leave_plain"
    pipeline = Pipeline(
        schedule,
        wrapped,
        group=mesh["pp"],
        loss=nn.functional.mse_loss,
        data_parallel=mesh["dp"] if is_plain else None,
    )
    optimizer = torch.optim.SGD([p for m in wrapped.values() for p in m.parameters()], 0.1)
    for step in range(STEPS):
        x, y = draw(step, mesh["dp"].get_local_rank())
        for part in range(accumulate):
            batch = pipeline.split(x, targets=y)
            pipeline.step(batch, weight=1 / accumulate, update=part + 1 == accumulate)
        optimizer.step()
        optimizer.zero_grad(set_to_none=wrap != "wrap_ddp_with_views")
    return {
        s: [(p.full_tensor() if isinstance(p, DTensor) else p).detach() for p in m.parameters()]
        for s, m in wrapped.items()
    }


def assert_trained(found: list[dict[int, list[Tensor]]], count: int) -> None:
    wanted = train_plainly(count)
    for by_stage in found:
        for stage, parameters in by_stage.items():
            for mine, true in zip(parameters, wanted[stage], strict=True):
                torch.testing.assert_close(mine, true)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("wrap", ["leave_plain", "wrap_ddp", "wrap_fsdp_resharding"])
def test_stages_train_as_one_process_under_every_schedule(
    pool: Any, family: str, wrap: str
) -> None:
    schedule = generate(family, num_ranks=2, num_micro_batches=MICRO_BATCHES)
    assert_trained(pool.run(train, 4, schedule, wrap), schedule.placement.num_stages)


@pytest.mark.parametrize("wrap", [w.__name__ for w in WRAPS])
def test_every_way_to_wrap_trains_as_one_process(pool: Any, wrap: str) -> None:
    schedule = generate("zb-h1", num_ranks=2, num_micro_batches=MICRO_BATCHES)
    assert_trained(pool.run(train, 4, schedule, wrap), 2)


@pytest.mark.parametrize("wrap", ["leave_plain", "wrap_ddp", "wrap_fsdp_resharding"])
def test_stages_accumulate_over_steps(pool: Any, wrap: str) -> None:
    schedule = generate("zb-h1", num_ranks=2, num_micro_batches=MICRO_BATCHES)
    assert_trained(pool.run(train, 4, schedule, wrap, 2), 2)


@pytest.mark.parametrize("family", ["chimera", "dualpipe-v"])
def test_copies_of_stages_are_summed_before_they_are_averaged(pool: Any, family: str) -> None:
    schedule = generate(family, num_ranks=2, num_micro_batches=MICRO_BATCHES)
    assert_trained(pool.run(train, 4, schedule, "leave_plain"), schedule.placement.num_stages)


def train_tied(rank: int, size: int) -> list[Tensor]:
    """A weight that both ranks of each pipeline hold; and one that two stages of a rank share."""
    from torch.distributed.device_mesh import init_device_mesh

    from synth.runtime.pipeline import Pipeline

    mesh = init_device_mesh("cpu", (REPLICAS, 2), mesh_dim_names=("dp", "pp"))
    schedule = generate("interleaved:2", num_ranks=2, num_micro_batches=MICRO_BATCHES)
    stages = build_tied_stages()
    mine = {s: stages[s] for s, _ in schedule.placement.held[mesh["pp"].get_local_rank()]}
    pipeline = Pipeline(
        schedule,
        mine,
        group=mesh["pp"],
        data_parallel=mesh["dp"],
        loss=nn.functional.mse_loss,
        tied={"ends": stages[0 if 0 in mine else 3].get_parameter("weight")},
    )
    x, y = draw(0, mesh["dp"].get_local_rank())
    pipeline.step(pipeline.split(x, targets=y))
    return [gradient_of(p) for stage in mine.values() for p in stage.parameters()]


def build_tied_stages() -> list[nn.Linear]:
    """Stage 3 has the weight of stage 0, stage 2 (of the same rank as 0) its bias."""
    torch.manual_seed(4)
    stages = [nn.Linear(WIDTH, WIDTH) for _ in range(4)]
    stages[3].weight, stages[2].bias = stages[0].weight, stages[0].bias
    return stages


def test_tied_parameters_are_summed_before_they_are_averaged(pool: Any) -> None:
    stages = build_tied_stages()
    model = nn.Sequential(*stages)
    for replica in range(REPLICAS):
        for x, y in zip(*(t.chunk(MICRO_BATCHES) for t in draw(0, replica)), strict=True):
            (nn.functional.mse_loss(model(x), y) / MICRO_BATCHES / REPLICAS).backward()
    held = [(0, 2), (1, 3), (0, 2), (1, 3)]
    for found, numbers in zip(pool.run(train_tied, 4), held, strict=True):
        wanted = [gradient_of(p) for n in numbers for p in stages[n].parameters()]
        for mine, true in zip(found, wanted, strict=True):
            torch.testing.assert_close(mine, true)


def reduce_by_a_hook(rank: int, size: int) -> tuple[list[int], list[Tensor]]:
    """Stages in the order in which the hook was called, and averages that it made."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    from synth.runtime.pipeline import Pipeline

    mesh = init_device_mesh("cpu", (REPLICAS, 2), mesh_dim_names=("dp", "pp"))
    schedule = generate("zb-v", num_ranks=2, num_micro_batches=MICRO_BATCHES)
    stages = build_stages(4)
    mine = {s: stages[s] for s, _ in schedule.placement.held[mesh["pp"].get_local_rank()]}
    called: list[int] = []

    def average(stage: int) -> None:
        called.append(stage)
        for parameter in mine[stage].parameters():
            dist.all_reduce(gradient_of(parameter), group=mesh["dp"].get_group())
            gradient_of(parameter).div_(REPLICAS)

    pipeline = Pipeline(
        schedule, mine, group=mesh["pp"], loss=nn.functional.mse_loss, on_gradients=average
    )
    x, y = draw(0, mesh["dp"].get_local_rank())
    pipeline.step(pipeline.split(x, targets=y), weight=0.5, update=False)
    assert not called
    pipeline.step(pipeline.split(x, targets=y), weight=0.5)
    return called, [gradient_of(p) for stage in mine.values() for p in stage.parameters()]


def test_a_hook_is_called_where_the_gradients_of_a_stage_are_complete(pool: Any) -> None:
    stages = build_stages(4)
    model = nn.Sequential(*stages)
    for replica in range(REPLICAS):
        for x, y in zip(*(t.chunk(MICRO_BATCHES) for t in draw(0, replica)), strict=True):
            (nn.functional.mse_loss(model(x), y) / MICRO_BATCHES / REPLICAS).backward()
    for rank, (called, found) in enumerate(pool.run(reduce_by_a_hook, 4)):
        held = (0, 3) if rank % 2 == 0 else (1, 2)
        assert sorted(called) == list(held)
        wanted = [gradient_of(p) for n in held for p in stages[n].parameters()]
        for mine, true in zip(found, wanted, strict=True):
            torch.testing.assert_close(mine, true)


def make_a_mistake(rank: int, size: int, mistake: str) -> str:
    """The message that this rank gets."""
    from torch.distributed.device_mesh import init_device_mesh

    from synth.errors import SynthError
    from synth.runtime.pipeline import Pipeline

    mesh = init_device_mesh("cpu", (REPLICAS, 2), mesh_dim_names=("dp", "pp"))
    peer, place = mesh["dp"].get_local_rank(), mesh["pp"].get_local_rank()
    family = "gpipe" if mistake == "schedule" and peer else "1f1b"
    schedule = generate(family, num_ranks=2, num_micro_batches=MICRO_BATCHES)
    stage: nn.Module = build_stages(2)[place]
    if mistake == "parameters" and peer:
        stage = nn.Linear(WIDTH, WIDTH)
    if mistake == "wrapped":
        stage = wrap_ddp(stage, mesh["dp"])
    if mistake == "failure" and rank == 1:
        stage.register_forward_pre_hook(_fail)
    group = mesh["pp"]
    try:
        pipeline = Pipeline(
            schedule,
            stage,
            group=group,
            data_parallel=group if mistake == "dimension" else mesh["dp"],
            loss=nn.functional.mse_loss,
            timeout_s=60,
        )
        x, y = draw(0, peer)
        for _ in range(2):
            pipeline.step(pipeline.split(x, targets=y))
    except SynthError as error:
        return str(error)
    return "no error"


def _fail(module: nn.Module, arguments: Any) -> None:
    if torch.is_grad_enabled():
        raise ValueError("something broke")


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        ("schedule", "with different schedules"),
        ("parameters", "their stages have different parameters"),
        ("wrapped", "is wrapped in DistributedDataParallel or FSDP2"),
        ("dimension", "are ranks 0 and 1 of their pipelines"),
        ("failure", "something broke"),
    ],
)
def test_all_pipelines_are_told_of_a_mistake(pool: Any, mistake: str, message: str) -> None:
    for said in pool.run(make_a_mistake, 4, mistake):
        assert message in said


class Encoder(nn.Module):
    """Two encoder layers, perhaps checkpointed, each sharded by itself."""

    def __init__(self, is_checkpointed: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True) for _ in range(2)
        )
        self._is_checkpointed = is_checkpointed

    def forward(self, x: Tensor) -> Tensor:
        from torch.utils.checkpoint import checkpoint

        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self._is_checkpointed else layer(x)
        return x


def step_as_fsdp2(rank: int, size: int, is_checkpointed: bool, reshards: bool) -> list[bool]:
    """True if each gradient has the bits of FSDP2's own accumulation in mixed precision."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    from synth.runtime.pipeline import Pipeline

    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("dp", "pp"))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)

    def build() -> Any:
        torch.manual_seed(0)
        model = Encoder(is_checkpointed)
        for part in (*model.layers, model):
            fully_shard(part, mesh=mesh["dp"], mp_policy=policy, reshard_after_forward=reshards)
        return model

    def loss(output: Tensor, target: Tensor) -> Tensor:
        return nn.functional.mse_loss(output.float(), target)

    mine, theirs = build(), build()
    schedule = generate("zb-h1", num_ranks=1, num_micro_batches=MICRO_BATCHES)
    pipeline = Pipeline(schedule, mine, group=mesh["pp"], loss=loss)
    same = []
    for step in range(2):
        generator = torch.Generator().manual_seed(10 * step + rank)
        x, y = (torch.randn(2 * MICRO_BATCHES, 3, 8, generator=generator) for _ in range(2))
        pipeline.step(pipeline.split(x, targets=y))
        parts = zip(x.chunk(MICRO_BATCHES), y.chunk(MICRO_BATCHES), strict=True)
        for number, (x_part, y_part) in enumerate(parts, 1):
            theirs.set_is_last_backward(number == MICRO_BATCHES)
            theirs.set_requires_gradient_sync(number == MICRO_BATCHES)
            (loss(theirs(x_part), y_part) / MICRO_BATCHES).backward()
        pairs = zip(mine.parameters(), theirs.parameters(), strict=True)
        same += [torch.equal(p.grad.to_local(), q.grad.to_local()) for p, q in pairs]
    return same


@pytest.mark.parametrize("is_checkpointed", [False, True])
@pytest.mark.parametrize("reshards", [False, True])
def test_mixed_precision_and_checkpoints_have_the_bits_of_fsdp2(
    pool: Any, is_checkpointed: bool, reshards: bool
) -> None:
    for same in pool.run(step_as_fsdp2, 2, is_checkpointed, reshards):
        assert len(same) == 2 * 24 and all(same)


@pytest.mark.parametrize("wrap", ["wrap_ddp", "wrap_fsdp_resharding"])
def test_copies_of_wrapped_stages_are_summed_too(pool: Any, wrap: str) -> None:
    schedule = generate("chimera", num_ranks=2, num_micro_batches=MICRO_BATCHES)
    assert_trained(pool.run(train, 4, schedule, wrap), schedule.placement.num_stages)


class Uncommon(nn.Module):
    """A sparse table, an unused weight, buffers that gloo does not know, and listened gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(8, WIDTH, sparse=True)
        self.unused = nn.Linear(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("steps", torch.tensor(3, dtype=torch.int16))
        self.register_buffer("scales", torch.ones(4).to(torch.float8_e4m3fn))

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(torch.tanh(self.table(ids)))


def train_uncommon(rank: int, size: int) -> tuple[list[Tensor | None], list[Tensor]]:
    """Gradients and buffers of a stage of two pipelines of one rank."""
    from torch.distributed.device_mesh import init_device_mesh

    from synth.runtime.pipeline import Pipeline

    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("dp", "pp"))
    torch.manual_seed(3)
    stage = Uncommon()
    if rank:
        for buffer in stage.buffers():
            buffer.zero_()
    pipeline = Pipeline(
        generate("zb-h1", num_ranks=1, num_micro_batches=2),
        stage,
        group=mesh["pp"],
        data_parallel=mesh["dp"],
        loss=nn.functional.mse_loss,
    )
    ids = torch.arange(4) + 2 * rank
    for _ in range(2):
        stage.zero_grad()
        pipeline.step(pipeline.split(ids, targets=torch.ones(4, WIDTH)))
    dense = [p.grad.to_dense() if p.grad is not None else None for p in stage.parameters()]
    return dense, [buffer.float() for buffer in stage.buffers()]


def test_sparse_and_unused_parameters_and_uncommon_buffers_are_as_of_one_process(
    pool: Any,
) -> None:
    torch.manual_seed(3)
    stage = Uncommon()
    for first in (0, 2):
        for ids in (torch.arange(4) + first).chunk(2):
            (nn.functional.mse_loss(stage(ids), torch.ones(2, WIDTH)) / 4).backward()
    wanted = [p.grad.to_dense() if p.grad is not None else None for p in stage.parameters()]
    for found, buffers in pool.run(train_uncommon, 2):
        for mine, true in zip(found, wanted, strict=True):
            assert (mine is None) == (true is None)
            if mine is not None:
                torch.testing.assert_close(mine, true)
        assert [buffer.tolist() for buffer in buffers] == [3, [1, 1, 1, 1]]


def step_with_hooks(rank: int, size: int, wrap: str) -> tuple[int, int, list[Tensor]]:
    """Calls of a tensor hook and of a post-accumulate hook, and the gradients."""
    from torch.distributed.device_mesh import init_device_mesh

    from synth.runtime.pipeline import Pipeline

    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("dp", "pp"))
    (stage,) = build_stages(1)
    called = {"tensor": 0, "accumulated": 0}

    def decay(gradient: Tensor) -> Tensor:
        called["tensor"] += 1
        return gradient + 0.1

    def note(parameter: Tensor) -> None:
        called["accumulated"] += 1

    weight = stage.get_parameter("outer.weight")
    weight.register_hook(decay)
    weight.register_post_accumulate_grad_hook(note)
    is_plain = wrap == "leave_plain"
    wrapped = stage if is_plain else globals()[wrap](stage, mesh["dp"])
    pipeline = Pipeline(
        generate("zb-h1", num_ranks=1, num_micro_batches=MICRO_BATCHES),
        wrapped,
        group=mesh["pp"],
        data_parallel=mesh["dp"] if is_plain else None,
        loss=nn.functional.mse_loss,
    )
    x, y = draw(0, rank)
    pipeline.step(pipeline.split(x, targets=y))
    return called["tensor"], called["accumulated"], [gradient_of(p) for p in stage.parameters()]


def test_hooks_of_users_run_once_for_each_micro_batch_in_wrappers_too(pool: Any) -> None:
    plain, wrapped = (pool.run(step_with_hooks, 2, w) for w in ("leave_plain", "wrap_ddp"))
    for (*calls, gradients), (*other_calls, others) in zip(plain, wrapped, strict=True):
        assert calls == other_calls == [MICRO_BATCHES, MICRO_BATCHES]
        for mine, theirs in zip(gradients, others, strict=True):
            torch.testing.assert_close(mine, theirs)


def make_partly_wrapped(rank: int, size: int) -> list[str]:
    """Warnings of a pipeline whose stage has parameters outside of its wrapper."""
    import warnings

    import torch.distributed as dist

    from synth.runtime.execution.stage.stage import Stage

    (stage,) = build_stages(1)
    stage.inner = wrap_ddp(stage.inner, _Mesh(dist.group.WORLD))  # type: ignore[arg-type]
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        Stage(stage, is_first=True, is_last=True)
        Stage(wrap_ddp(build_stages(1)[0], _Mesh(dist.group.WORLD)), is_first=True, is_last=True)
    return [str(warning.message) for warning in found]


class _Mesh:
    def __init__(self, group: Any) -> None:
        self._group = group

    def get_group(self) -> Any:
        return self._group


def test_a_stage_that_is_wrapped_in_part_is_warned_of(pool: Any) -> None:
    for warned in pool.run(make_partly_wrapped, 2):
        assert len(warned) == 1
        assert "a stage is wrapped in part: the gradients of gate and " in warned[0]
