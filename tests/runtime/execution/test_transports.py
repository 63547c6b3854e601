"""Ranks on gloo and ranks that are threads of one process behave alike."""

import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from synth.costs.costs import uniform_costs
from synth.errors import RunFailure, SynthError
from synth.families import family_placement, generate
from synth.profile.links import Link, Links
from synth.runtime.execution.base.channels import Channels
from synth.runtime.execution.transport.open_channels import open_channels
from synth.runtime.pipeline import Pipeline
from synth.runtime.pipeline.groups import group_of
from synth.schedule.lowering.lower import Transfer
from synth.schedule.model import Schedule
from synth.schedule.ops import Value, ValueKind
from tests.runtime.rank_threads import draw_weights, group_here
from tests.runtime.replaying import replay

CPU = torch.device("cpu")
SMALL, LARGE = 10, 20_000  # float32 numbers: through a socket of gloo's channels, through gloo
BOTH = pytest.mark.parametrize("length", [SMALL, LARGE])


def transfer(microbatch: int, source: int, target: int, length: int) -> Transfer:
    value = Value(ValueKind.ACT, source, microbatch, 0)
    return Transfer(value, source, target, 4 * length, 0)


def opened(transfers: list[Transfer], timeout_s: float = 60.0) -> Channels:
    return open_channels(CPU, transfers, timeout_s, group_of(group_here(), timeout_s))


@BOTH
def test_messages_of_a_link_fill_buffers_in_the_order_of_posting(ranks: Any, length: int) -> None:
    assert ranks.run(send_first_and_last, 2, length) == [None, [1.0, 2.0, 3.0]]


def send_first_and_last(rank: int, size: int, length: int) -> list[float] | None:
    """Receives are waited for in the reverse order."""
    transfers = [transfer(j, 0, 1, length) for j in range(3)]
    channels = opened(transfers)
    if rank == 0:
        started = [
            channels.send((torch.full((length,), j + 1.0),), t) for j, t in enumerate(transfers)
        ]
        for sending in started:
            sending.wait()
        return None
    buffers = [torch.empty(length) for _ in transfers]
    posted = [channels.receive((b,), t) for b, t in zip(buffers, transfers, strict=True)]
    for receiving in reversed(posted):
        receiving.wait()
    return [float(buffer.mean()) for buffer in buffers]


@BOTH
def test_ranks_that_send_to_each_other_first_do_not_block(ranks: Any, length: int) -> None:
    assert ranks.run(send_both_ways, 2, length) == [1.0, 0.0]


def send_both_ways(rank: int, size: int, length: int) -> float:
    other = 1 - rank
    out, back = transfer(0, rank, other, length), transfer(0, other, rank, length)
    channels = opened([out, back])
    sending = channels.send((torch.full((length,), float(rank)),), out)
    (came,) = channels.receive((torch.empty(length),), back).wait()
    sending.wait()
    return float(came.mean())


@BOTH
def test_what_came_is_not_the_senders_memory(ranks: Any, length: int) -> None:
    assert ranks.run(overwrite_what_was_sent, 2, length) == [0.0, 1.0]


def overwrite_what_was_sent(rank: int, size: int, length: int) -> float:
    group = group_of(group_here(), 60.0)
    one = transfer(0, 0, 1, length)
    channels = open_channels(CPU, [one], 60.0, group)
    tensor = torch.ones(length)
    if rank == 0:
        sending = channels.send((tensor,), one)
        group.gather("posted")
        sending.wait()
        tensor.zero_()
    else:
        receiving = channels.receive((tensor.zero_(),), one)
        group.gather("posted")
        receiving.wait()
    group.gather("done")
    return float(tensor.mean())


def test_large_messages_wait_for_their_receive(ranks: Any) -> None:
    assert "imed out" in ranks.run(send_to_nobody, 2)[0]


def limit_s(*, is_short: bool) -> float:
    """A time limit; for gloo so long that its groups are connected before it ends."""
    if not is_short:
        return 60.0
    return 3.0 if group_here() is None else 0.1


def send_to_nobody(rank: int, size: int) -> str:
    return wait_alone(rank, alone=0, length=LARGE)


def wait_alone(rank: int, *, alone: int, length: int) -> str:
    """One of two ranks waits for its end of a transfer that the other never starts; its error."""
    timeout_s = limit_s(is_short=rank == alone)
    group = group_of(group_here(), timeout_s)
    one = transfer(0, 0, 1, length)
    channels = open_channels(CPU, [one], timeout_s, group)
    if rank != alone:
        with pytest.raises(RunFailure):
            group.gather("waits until the other is gone")
        return ""
    start = channels.receive if alone else channels.send
    with pytest.raises(RuntimeError) as failed:
        start((torch.ones(length),), one).wait()
    channels.abort()
    return str(failed.value)


@BOTH
def test_a_receive_of_what_is_never_sent_runs_out_of_time(ranks: Any, length: int) -> None:
    assert "imed out" in ranks.run(receive_from_nobody, 2, length)[1]


def receive_from_nobody(rank: int, size: int, length: int) -> str:
    return wait_alone(rank, alone=1, length=length)


@BOTH
def test_a_rank_that_lets_go_ends_those_that_wait_for_it(ranks: Any, length: int) -> None:
    said = ranks.run(let_go, 3, length)
    assert all(words and "imed out" not in words for words in said[1:])


def let_go(rank: int, size: int, length: int) -> str:
    """Rank 0 lets go; rank 1 waits for a message of it, rank 2 for one of rank 1."""
    transfers = [transfer(0, 0, 1, length), transfer(0, 1, 2, length)]
    channels = opened(transfers)
    if rank == 0:
        channels.abort()
        return ""
    try:
        channels.receive((torch.empty(length),), transfers[rank - 1]).wait()
    except RuntimeError as error:
        channels.abort()
        return str(error)
    return "nothing failed"


def test_what_ranks_tell_each_other_is_told_to_all(ranks: Any) -> None:
    for rank, told in enumerate(ranks.run(tell_each_other, 3)):
        assert told == (["rank 0", "rank 1", "rank 2"], {"from": 2}, 5, "rank 1 refuses", rank == 1)


def tell_each_other(rank: int, size: int) -> tuple[Any, ...]:
    group = group_of(group_here(), 60.0)
    gathered = group.gather(f"rank {rank}")
    shared = group.share({"from": rank}, 2)
    agreed = group.agree(0, lambda: 5 + rank)
    made = []

    def refuse() -> None:
        made.append(rank)
        raise SynthError("rank 1 refuses")

    with pytest.raises(SynthError) as refused:
        group.agree(1, refuse)
    return gathered, shared, agreed, str(refused.value), made == [1]


def test_collectives_of_some_ranks(ranks: Any) -> None:
    outside, *inside = ranks.run(reduce_among_two, 3)
    assert outside == []
    assert inside == [[3.0, 3.0, 30.0, 2.0, 1.0, 1.0, 2.0]] * 2


def reduce_among_two(rank: int, size: int) -> list[float]:
    """Ranks 1 and 2: sums, alone and together; the largest; the first one's; and all of them."""
    from torch.distributed import BroadcastOptions, ReduceOp

    handle = group_of(group_here(), 60.0).subgroup((1, 2))
    if handle is None:
        return []
    assert (handle.size(), handle.rank()) == (2, rank - 1)
    alone, first, second, largest, root = (torch.tensor([float(rank)]) for _ in range(5))
    second *= 10
    options = BroadcastOptions()
    options.rootRank = 0
    gathered = [torch.zeros(1), torch.zeros(1)]
    works = [
        handle.allreduce([alone]),
        handle.allreduce_coalesced([first, second]),
        handle.allreduce([largest], ReduceOp.MAX),
        handle.broadcast([root], options),
        handle.allgather([gathered], [torch.tensor([float(rank)])]),
    ]
    for work in works:
        work.wait()
    return [float(tensor) for tensor in (alone, first, second, largest, root, *gathered)]


SCHEDULES = [
    *("gpipe", "1f1b", "1f1b:recompute", "zb-h1", "zb-h2"),
    *("interleaved:2", "zb-v", "hanayo:1", "chimera", "dualpipe", "bpipe", "pipeoffload:2,full"),
]


def made(name: str, num_ranks: int) -> Schedule:
    """A schedule made on costs with which the families that move activations do so."""
    costs = uniform_costs(
        family_placement(name, num_ranks).num_stages,
        forward_us=100,
        backward_input_us=100,
        backward_weight_us=100,
        saved_bytes=100,
        saved_w_bytes=100,
        links=Links(host=Link(latency_us=10)),
    )
    caps = [(num_ranks + 1) * 100] * num_ranks
    return generate(name, num_ranks, 2 * num_ranks, costs=costs, caps_bytes=caps)


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_gradients_of_a_step_are_autograds(ranks: Any, num_ranks: int) -> None:
    schedules = [made(name, num_ranks) for name in SCHEDULES]
    for answers in ranks.run(replay, num_ranks, schedules):
        for schedule, (_, wrong, left) in zip(schedules, answers, strict=True):
            assert (wrong, left) == (set(), 0), schedule.name


class Fails(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if not x.is_meta and torch.is_grad_enabled():
            raise ValueError("the rank that fails")
        return x


@pytest.mark.parametrize(("name", "size", "failing"), [("1f1b", 2, 1), ("zb-h1", 3, 0)])
def test_a_rank_that_fails_in_a_step_is_named_on_all(
    ranks: Any, name: str, size: int, failing: int
) -> None:
    for rank, said in enumerate(ranks.run(step_until_it_fails, size, name, failing)):
        assert said.startswith(f"rank {rank} failed in ")
        assert re.search(rf"rank {failing} failed in F{failing}\.0[^;]*: the rank that fails", said)


def step_until_it_fails(rank: int, size: int, name: str, failing: int) -> str:
    stage = Fails() if rank == failing else nn.Linear(4, 4)
    pipeline = Pipeline(
        generate(name, size, 4), stage, loss=nn.functional.mse_loss, group=group_here()
    )
    x = torch.ones(8, 4)
    with pytest.raises(RunFailure) as failed:
        pipeline.step(pipeline.split(x, targets=x))
    return str(failed.value)


def test_pipelines_side_by_side_average_their_gradients(ranks: Any) -> None:
    stages, inputs = two_stages(), numbered_inputs()
    for x in inputs:
        nn.functional.mse_loss(nn.Sequential(*stages)(x), x).div(2).backward()
    wanted = [[p.grad for p in stage.parameters()] for stage in stages]
    for rank, found in enumerate(ranks.run(average_side_by_side, 4)):
        for mine, true in zip(found, wanted[rank % 2], strict=True):
            torch.testing.assert_close(mine, true)


def two_stages() -> list[nn.Module]:
    stages: list[nn.Module] = [nn.Linear(4, 4), nn.Linear(4, 4)]
    draw_weights(stages, seed=1)
    return stages


def numbered_inputs() -> list[Tensor]:
    return [torch.arange(32.0).view(8, 4) / 32 + pipeline for pipeline in range(2)]


def average_side_by_side(rank: int, size: int) -> list[Tensor]:
    """Pipeline p has ranks 2p and 2p + 1."""
    number, place = divmod(rank, 2)
    here = group_here()
    group: Any
    peers: Any
    if here is None:
        from torch.distributed.device_mesh import init_device_mesh

        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "pp"))
        group, peers = mesh["pp"], mesh["dp"]
    else:
        group, peers = here.part((2 * number, 2 * number + 1)), here.part((place, place + 2))
    stage = two_stages()[place]
    loss = nn.functional.mse_loss
    pipeline = Pipeline(generate("zb-h1", 2, 4), stage, group=group, data_parallel=peers, loss=loss)
    x = numbered_inputs()[number]
    pipeline.step(pipeline.split(x, targets=x))
    gradients = [p.grad for p in stage.parameters()]
    return [gradient for gradient in gradients if gradient is not None]
