"""Ranks as threads expose errors, more of them than on gloo."""

import pytest
import torch
from torch import Tensor, nn

from synth.errors import RunFailure, SynthError
from synth.families import generate
from synth.runtime.execution.stage.layer_chain import LayerChain
from synth.runtime.execution.transport.in_process.ranks import InProcessGroup, run_ranks
from synth.runtime.execution.transport.open_channels import open_channels
from synth.runtime.pipeline import Pipeline
from synth.runtime.profiling.profile_model import profile_layers
from synth.schedule.files.plan_file import Plan
from synth.schedule.lowering.lower import Transfer
from synth.schedule.ops import Value, ValueKind
from tests.runtime.rank_threads import RankThreads
from tests.runtime.replaying import replay

CPU = torch.device("cpu")


def transfer(microbatch: int) -> Transfer:
    return Transfer(Value(ValueKind.ACT, 0, microbatch, 0), 0, 1, 16, 0)


def test_many_ranks_need_no_processes() -> None:
    schedules = [generate(name, 12, 24) for name in ("zb-h1", "zb-v", "chimera")]
    for answers in RankThreads().run(replay, 12, schedules):
        assert [(wrong, left) for _, wrong, left in answers] == [(set(), 0)] * 3


def test_results_are_in_rank_order() -> None:
    assert run_ranks(5, lambda group: group.rank) == [0, 1, 2, 3, 4]


def test_what_ranks_share_is_a_copy_on_each() -> None:
    def share(group: InProcessGroup) -> int:
        found: list[int] = group.share([], 0)
        found.append(group.rank)
        group.gather(None)
        return len(found)

    assert run_ranks(3, share) == [1, 1, 1]


def test_a_buffer_is_not_filled_before_its_receive_is_waited_for() -> None:
    def send(group: InProcessGroup) -> tuple[float, float]:
        channels = open_channels(CPU, [transfer(0)], group=group)
        tensor = torch.full((4,), 2.0 - group.rank)
        pending = (
            channels.receive((tensor,), transfer(0))
            if group.rank
            else channels.send((tensor,), transfer(0))
        )
        group.gather("both have started")
        before = float(tensor.mean())
        pending.wait()
        return before, float(tensor.mean())

    assert run_ranks(2, send) == [(2.0, 2.0), (1.0, 2.0)]


def test_a_tensor_that_changes_before_its_receive_is_posted_arrives_changed() -> None:
    def send(group: InProcessGroup) -> float:
        channels = open_channels(CPU, [transfer(0)], group=group)
        tensor = torch.ones(4)
        if group.rank == 0:
            sending = channels.send((tensor,), transfer(0))
            tensor.zero_()  # an error: it must live until the send is waited for
            group.gather("changed")
            sending.wait()
        else:
            group.gather("changed")
            channels.receive((tensor,), transfer(0)).wait()
        return float(tensor.mean())

    assert run_ranks(2, send)[1] == 0.0
    assert run_ranks(2, send, eager_bytes=16)[1] == 1.0


def test_a_message_that_nobody_received_is_an_error_though_its_send_is_over() -> None:
    def send(group: InProcessGroup) -> None:
        channels = open_channels(CPU, [transfer(0)], group=group)
        if group.rank == 0:
            channels.send((torch.ones(4),), transfer(0)).wait()

    with pytest.raises(SynthError, match=r"1 transfers or collectives have not: \(0, 1\)"):
        run_ranks(2, send, eager_bytes=16)
    with pytest.raises(RuntimeError, match="Connection closed by rank 1"):
        run_ranks(2, send)


def test_ends_that_mean_different_values_fail() -> None:
    def send(group: InProcessGroup) -> None:
        channels = open_channels(CPU, [transfer(0), transfer(1)], group=group)
        start = channels.receive if group.rank else channels.send
        start((torch.ones(4),), transfer(group.rank)).wait()

    with pytest.raises(RuntimeError, match=r"act\(0, 0\) .* is sent where act\(0, 1\) .* received"):
        run_ranks(2, send)


def test_ends_of_different_sizes_fail() -> None:
    def send(group: InProcessGroup) -> None:
        channels = open_channels(CPU, [transfer(0)], group=group)
        start = channels.receive if group.rank else channels.send
        start((torch.ones(4 + group.rank),), transfer(0)).wait()

    with pytest.raises(RuntimeError, match=r"\(4,\).* is sent, .*\(5,\).* is received"):
        run_ranks(2, send)


def test_ranks_that_call_different_collectives_fail() -> None:
    def call(group: InProcessGroup) -> None:
        handle = group.subgroup(range(2))
        assert handle is not None
        tensors = [torch.ones(2)]
        (handle.allreduce_coalesced if group.rank else handle.allreduce)(tensors).wait()

    with pytest.raises(RuntimeError, match=r"rank 1 calls allreduce_coalesced .* calls allreduce "):
        run_ranks(2, call)


class Fails(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if not x.is_meta:
            raise ValueError("the rank that fails")
        return x


def test_a_rank_that_fails_ends_the_others_and_the_call() -> None:
    def step(group: InProcessGroup) -> None:
        stage = Fails() if group.rank == 1 else nn.Linear(4, 4)
        schedule = generate("1f1b", 3, 4)
        pipeline = Pipeline(schedule, stage, group=group, loss=nn.functional.mse_loss)
        pipeline.step(pipeline.split(torch.ones(8, 4), targets=torch.ones(8, 4)))

    with pytest.raises(RunFailure, match=r"rank 1 failed in F1\.0.*: the rank that fails"):
        run_ranks(3, step)


def test_a_rank_that_fails_before_its_pipeline_ends_those_that_make_theirs() -> None:
    ended: list[int] = []

    def make(group: InProcessGroup) -> None:
        if group.rank == 0:
            raise ValueError("no pipeline")
        try:
            Pipeline(generate("1f1b", 2, 4), nn.Linear(4, 4), group=group)
        except RunFailure as error:
            assert "rank 0 failed: ValueError: no pipeline" in str(error)
            ended.append(group.rank)
            raise

    with pytest.raises((ValueError, RunFailure), match="no pipeline"):
        run_ranks(2, make)
    assert ended == [1]


def test_a_pipeline_that_failed_leaves_those_made_after_it_alone() -> None:
    def step_twice(group: InProcessGroup) -> bool:
        schedule, x = generate("1f1b", 2, 4), torch.ones(8, 4)
        broken = Pipeline(schedule, Fails(), group=group, loss=nn.functional.mse_loss)
        with pytest.raises(RunFailure):
            broken.step(broken.split(x, targets=x))
        sound = Pipeline(schedule, nn.Linear(4, 4), group=group, loss=nn.functional.mse_loss)
        return sound.step(sound.split(x, targets=x)) is not None

    assert run_ranks(2, step_twice) == [False, True]


class Ending(nn.Module):
    """The last layer: its loss."""

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.mse_loss(x, targets)


def build_layers() -> list[nn.Module]:
    torch.manual_seed(0)
    return [nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2), Ending()]


def test_a_plan_divides_the_layers_of_a_program() -> None:
    x, y = torch.randn(8, 4), torch.randn(8, 2)
    measured = profile_layers(build_layers(), x[:2], y[:2], warmup=0, iterations=1)
    plan = Plan.of(measured, [1, 2, 1, 2], generate("zb-v", 2, 4))
    own = [build_layers() for _ in range(2)]

    def step(group: InProcessGroup) -> dict[int, list[Tensor | None]]:
        modules = plan.modules(group.rank, own[group.rank])
        pipeline = Pipeline(plan.schedule(), modules, group=group, timeout_s=60)
        pipeline.step(pipeline.split(x, targets=y))
        return {n: [p.grad for m in stage for p in m.parameters()] for n, stage in modules.items()}

    found = {stage: grads for rank in run_ranks(2, step) for stage, grads in rank.items()}
    whole = build_layers()
    LayerChain(whole)(x, targets=y).backward()
    wanted = [p.grad for layer in whole for p in layer.parameters()]
    gradients = [gradient for stage in range(4) for gradient in found[stage]]
    for mine, theirs in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_profiling_layers_of_a_program_leaves_them_as_they_are() -> None:
    class Last(nn.Module):
        def forward(self, x: Tensor, targets: Tensor) -> Tensor:
            return nn.functional.mse_loss(x, targets)

    layers = [nn.Linear(4, 4), nn.BatchNorm1d(4), Last()]
    before = [{n: t.clone() for n, t in layer.state_dict().items()} for layer in layers]
    profile_layers(layers, torch.randn(6, 4) + 3, torch.randn(6, 4), warmup=1, iterations=2)
    for layer, kept in zip(layers, before, strict=True):
        assert all(torch.equal(value, kept[name]) for name, value in layer.state_dict().items())


@pytest.mark.parametrize("is_trained", [True, False])
def test_ranks_that_hold_a_trained_parameter_itself_are_refused(*, is_trained: bool) -> None:
    weight = nn.Parameter(torch.ones(4, 4), requires_grad=is_trained)

    def on_rank(group: InProcessGroup) -> str:
        stage = nn.Linear(4, 4)
        stage.weight = weight
        return repr(
            Pipeline(generate("1f1b", 2, 2), stage, group=group, loss=nn.functional.mse_loss)
        )

    if is_trained:
        with pytest.raises(SynthError, match="are threads, and both hold the parameter weight its"):
            run_ranks(2, on_rank)
    else:
        assert len(run_ranks(2, on_rank)) == 2
