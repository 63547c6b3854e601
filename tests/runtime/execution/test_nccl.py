"""Communicators as on NCCL, with gloo groups in their place, since tests have no GPU."""

import os
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore

from synth.errors import SynthError
from synth.families import generate
from synth.runtime.execution.transport.nccl.communicators import (
    NcclGroups,
    limit_ctas,
    prepare_cuda,
)


class Fake:
    """A communicator that records its calls."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.before: Callable[[], object] = int
        self.aborted = 0

    def abort(self) -> None:
        self.before()
        self.aborted += 1
        if self.error is not None:
            raise self.error


def groups_of(made: list[Fake]) -> NcclGroups:
    """Rank 0 of three ranks, all of which have come."""
    store = HashStore()
    groups: NcclGroups = NcclGroups(
        store, (0, 1, 2), 0, 1.0, make=lambda *_: made[len(groups._made)]
    )
    for other in (1, 2):
        store.set(f"group-nccl-0-{other}-link-{other}", "")
        groups.among((0, other), "link")
    return groups


def test_an_abort_reaches_every_communicator_and_raises_nothing() -> None:
    made = [Fake(RuntimeError("NCCL is in a bad state")), Fake()]
    groups = groups_of(made)
    groups.abort()
    groups.abort()  # of the executor, and of the pipeline
    assert [fake.aborted for fake in made] == [1, 1]


def test_aborts_run_at_the_same_time_as_one_may_wait_for_another() -> None:
    both = threading.Barrier(2, timeout=20)
    made = [Fake(), Fake()]
    for fake in made:
        fake.before = both.wait
    groups_of(made).abort()
    assert [fake.aborted for fake in made] == [1, 1]


def test_a_rank_is_in_no_group_of_others() -> None:
    assert NcclGroups(HashStore(), (0, 1, 2), 0, 1.0).among((1, 2), "link") is None


@pytest.mark.parametrize(
    ("environment", "found"),
    [
        ({}, 4),
        ({"SYNTH_LINK_CTAS": "16"}, 16),
        ({"NCCL_MAX_CTAS": "2"}, None),
        ({"NCCL_MAX_CTAS": "2", "SYNTH_LINK_CTAS": "16"}, None),
    ],
)
def test_a_link_has_few_thread_blocks_unless_the_user_says_otherwise(
    environment: dict[str, str], found: int | None
) -> None:
    options = SimpleNamespace(config=SimpleNamespace(max_ctas=None))
    limit_ctas(options, environment)
    assert options.config.max_ctas == found


def test_a_torch_without_the_setting_is_left_alone() -> None:
    limit_ctas(SimpleNamespace(), {})
    limit_ctas(SimpleNamespace(config=SimpleNamespace()), {})


@pytest.mark.parametrize("text", ["0", "-1", "many", ""])
def test_a_wrong_number_of_thread_blocks_is_refused(text: str) -> None:
    with pytest.raises(SynthError, match="SYNTH_LINK_CTAS"):
        limit_ctas(
            SimpleNamespace(config=SimpleNamespace(max_ctas=None)), {"SYNTH_LINK_CTAS": text}
        )


def make_gloo(
    store: Any, rank: int, ranks: Any, timeout: timedelta, name: str, is_link: bool
) -> Any:
    return dist.ProcessGroupGloo(store, rank, len(ranks), timeout)


def as_on_nccl(group: Any, make: Any) -> Any:
    """The group with communicators of its own, patched to count as NCCL's."""
    nccl = NcclGroups(group.private.rendezvous.store, group.ranks, group.rank, 60.0, make=make)
    nccl.device = torch.device("cpu")
    return replace(group, nccl=nccl)


def pretend(patch: pytest.MonkeyPatch, make: Any = make_gloo) -> None:
    from synth.runtime.execution.transport.groups import Group

    whole: Any = vars(Group)["of"].__func__
    patch.setattr(
        Group, "of", classmethod(lambda cls, *given: as_on_nccl(whole(cls, *given), make))
    )
    patch.setattr(Group, "backend", lambda group, device: "nccl")


def train(rank: int, size: int, family: str, given: Any = None) -> tuple[Any, list[Any]]:
    from synth.runtime.pipeline import Pipeline

    schedule = generate(family, size, size)
    held = sorted({stage for stage, _ in schedule.placement.held[rank]})
    stages = {}
    for stage in held:
        torch.manual_seed(stage)
        stages[stage] = nn.Linear(4, 4)
    torch.manual_seed(7)
    x = torch.randn(2 * size, 4)
    pipeline = Pipeline(
        schedule, stages, loss=nn.functional.mse_loss, changing_shapes=True, group=given
    )
    losses = [pipeline.step(pipeline.split(x, targets=-x)) for _ in range(2)]
    losses.append(pipeline.clip_grad_norm_(0.1))
    gradients = [p.grad for module in pipeline.updated.values() for p in module.parameters()]
    pipeline.close()
    return losses, gradients


def train_both_ways(rank: int, size: int, family: str) -> Any:
    plain = train(rank, size, family)
    with pytest.MonkeyPatch.context() as patch:
        pretend(patch)
        return plain, train(rank, size, family)


@pytest.mark.parametrize("family", ["1f1b", "zb-v", "chimera", "weipipe", "zero3:1"])
def test_steps_by_communicators_are_those_of_gloo(pool: Any, family: str) -> None:
    for plain, ours in pool.run(train_both_ways, 4, family):
        torch.testing.assert_close(ours, plain, rtol=0, atol=0)


def train_in_parts(rank: int, size: int) -> Any:
    """Ranks 0 and 1 make a pipeline, ranks 2 and 3 make two, while the others make none."""
    parts = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    with pytest.MonkeyPatch.context() as patch:
        pretend(patch)
        if rank > 1:
            train(rank % 2, 2, "1f1b", parts[rank // 2])
        return train(rank % 2, 2, "1f1b", parts[rank // 2])


def test_pipelines_beside_each_other_are_made_by_their_own_ranks(pool: Any) -> None:
    first, second, third, fourth = pool.run(train_in_parts, 4)
    torch.testing.assert_close([first, second], [third, fourth], rtol=0, atol=0)


class Breaking(nn.Linear):
    """Fails in its second micro-batch."""

    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += torch.is_grad_enabled()
        if self.calls == 2:
            raise ValueError("the first failure")
        return super().forward(x)


class Failing(dist.ProcessGroupGloo):
    """A group whose abort closes the connection, and fails."""

    def abort(self) -> None:
        from synth.runtime.execution.transport.gloo.private_groups import _run_out_of_time

        _run_out_of_time(self, 1 - self.rank())
        raise RuntimeError("NCCL is in a bad state")


def fail_and_abort(rank: int, size: int) -> str:
    """Rank 1 fails, and so does every abort."""
    from synth.errors import RunFailure
    from synth.runtime.pipeline import Pipeline

    def make(store: Any, place: int, ranks: Any, timeout: timedelta, *_: Any) -> Any:
        return Failing(store, place, len(ranks), timeout)

    with pytest.MonkeyPatch.context() as patch:
        pretend(patch, make)
        stage = Breaking(4, 4) if rank == 1 else nn.Linear(4, 4)
        pipeline = Pipeline(generate("1f1b", 2, 2), stage, loss=nn.functional.mse_loss)
        x = torch.ones(2, 4)
        with pytest.raises(RunFailure) as caught:
            pipeline.step(pipeline.split(x, targets=x))
    return str(caught.value)


def test_a_rank_whose_aborts_fail_says_what_failed_first(pool: Any) -> None:
    waited, failed = pool.run(fail_and_abort, 2)
    assert failed == "rank 1 failed in F1.1: ValueError: the first failure"
    assert waited.startswith("rank 0 failed in ")
    assert waited.endswith(failed)


def fail_while_others_connect(rank: int, size: int) -> str:
    from synth.runtime.execution.transport.groups import Group
    from synth.runtime.execution.transport.nccl.channels import NcclChannels

    group = as_on_nccl(Group.world(20.0), make_gloo)
    links = [(0, 1), (1, 0), (1, 2), (2, 1)]
    try:
        with group.building():
            if rank == 2:
                raise ValueError("no memory")
            NcclChannels(group, links, torch.device("cpu"), timedelta(seconds=20))
    except Exception as error:
        return str(error)
    return "connected"


def test_ranks_that_connect_are_told_of_one_that_cannot(pool: Any) -> None:
    first, second, _ = pool.run(fail_while_others_connect, 3)
    assert second == "rank 1 cannot continue: rank 2 failed: ValueError: no memory"
    assert first == "connected" or first.endswith("rank 2 failed: ValueError: no memory")


def leave_one_after_the_other(rank: int, size: int) -> list[str]:
    """The order in which two ranks come to leave, and have left."""
    import time

    from synth.runtime.execution.transport.groups import Group

    group = as_on_nccl(Group.world(60.0), make_gloo)
    group.subgroup((0, 1))
    store: Any = group.private.rendezvous.store
    if rank == 1:
        time.sleep(0.3)
        store.append("said", "1 comes, ")
    group.close()
    store.append("said", f"{rank} left, ")
    group.private.rendezvous.meet("left", (0, 1))
    return str(store.get("said").decode()).split(", ")[:-1]


def test_nobody_frees_a_communicator_that_another_rank_still_uses(pool: Any) -> None:
    for said in pool.run(leave_one_after_the_other, 2):
        assert said[0] == "1 comes"
        assert sorted(said[1:]) == ["0 left", "1 left"]


def leave_alone(rank: int, size: int) -> float:
    import time

    from synth.runtime.execution.transport.groups import Group

    group = as_on_nccl(Group.world(0.5), make_gloo)
    group.subgroup((0, 1))
    group.nccl._leaving.timeout_s = 0.5
    start = time.monotonic()
    if rank == 0:
        group.close()
    return time.monotonic() - start


def test_who_leaves_does_not_wait_for_ever(pool: Any) -> None:
    assert pool.run(leave_alone, 2)[0] < 10


def test_cuda_loads_kernels_and_has_queues_unless_the_user_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("CUDA_MODULE_LOADING", raising=False)
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1")  # as Megatron-LM asks for
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    prepare_cuda()
    assert "CUDA_MODULE_LOADING" not in os.environ  # too late
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    prepare_cuda()
    assert os.environ["CUDA_MODULE_LOADING"] == "EAGER"
    monkeypatch.setenv("CUDA_MODULE_LOADING", "LAZY")
    prepare_cuda()
    assert os.environ["CUDA_MODULE_LOADING"] == "LAZY"
    assert os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"
    monkeypatch.delenv("CUDA_DEVICE_MAX_CONNECTIONS")
    prepare_cuda()
    assert os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] == "32"


def find_groups(rank: int, size: int) -> None:
    from synth.runtime.execution.transport import groups

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(groups, "_backends", lambda _: {"cpu": "gloo", "cuda": "nccl"})
        group = groups.Group.world()
        assert group.nccl is not None
        assert group.on(torch.device("cpu")).nccl is None
        cuda = torch.device("cuda", 3)
        assert group.on(cuda).nccl is group.nccl and group.nccl.device == cuda
        assert group.gather(rank) == [0, 1]  # by gloo
        assert group.agree(1, lambda: "told") == "told"


def test_on_nccl_tensors_of_the_device_alone_go_through_it(pool: Any) -> None:
    pool.run(find_groups, 2)
