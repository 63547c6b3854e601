"""The order of what the runtime asks of CUDA and NCCL, on a fake device that records it.

The fake carries out every call at once, so that a missing wait changes no number. The checker finds
it: it tells which calls a device may carry out at the same time.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from synth.costs.costs import uniform_costs
from synth.families import family_placement, generate
from synth.profile.links import Link, Links
from synth.runtime.execution.transport.in_process.ranks import InProcessGroup, run_ranks
from synth.schedule.model import Schedule
from tests.runtime.cuda_fake.checker import check_order
from tests.runtime.cuda_fake.ran import Ran
from tests.runtime.gradients import gradient_of
from tests.runtime.replaying import build_batch, build_stages, plain_autograd

STEPS = 2


def schedule_of(family: str, num_ranks: int) -> Schedule:
    """A family on stages whose F and BW save time at once."""
    where = family_placement(family, num_ranks)
    costs = uniform_costs(where.num_stages, forward_us=2, backward_input_us=2, backward_weight_us=2)
    stages = tuple(stage.replace(hidden_us=1) for stage in costs.stages)
    costs = costs.replace(stages=stages, links=Links(host=Link()))
    return generate(family, num_ranks, MICRO_BATCHES, costs=costs)


MICRO_BATCHES = 4


@contextmanager
def _patched(where: Any, name: str, value: Any) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(where, name, value)
        yield


def without_arrival() -> Any:
    """Another stream than the caller's waits for what arrives."""
    from synth.runtime.execution.transport.direct_transfer import DirectTransfer

    wait = DirectTransfer.wait

    def elsewhere(transfer: DirectTransfer) -> Any:
        with torch.cuda.stream(torch.cuda.Stream()):
            return wait(transfer)

    return _patched(DirectTransfer, "wait", elsewhere)


def without_sent() -> Any:
    """Free a sent tensor without a wait."""
    from synth.runtime.execution.program.transfers import RankTransfers

    def sent(transfers: Any, number: int, transfer: Any) -> None:
        del transfers._table.leaving[number]

    return _patched(RankTransfers, "_sent", sent)


def without_made() -> Any:
    """The thread of a link does not wait for the op that made what it sends."""
    from synth.runtime.execution.transport.thread_order import DeviceOrder

    return _patched(DeviceOrder, "made", lambda order, tensors: lambda: tensors)


def without_second_wait() -> Any:
    """Only the first thread that asks waits for a receive."""
    from synth.runtime.execution.transport.thread_order import _Arrival

    wait = _Arrival.wait

    def wait_once(arrival: Any) -> Any:
        return wait(arrival) if arrival._pending is not None else arrival._tensors

    return _patched(_Arrival, "wait", wait_once)


def without_copied() -> Any:
    """The compute stream does not wait for copies to the host and back."""
    from synth.runtime.execution.transport.host.copy_lane import _StreamCopy

    return _patched(_StreamCopy, "wait", lambda copy: None)


def without_lane_order() -> Any:
    """A lane does not wait for the compute stream."""
    from tests.runtime.cuda_fake.device import FakeStream

    return _patched(FakeStream, "wait_stream", lambda stream, other: None)


def without_begin() -> Any:
    """The stream beside does not wait for what the main one was given before a pair."""
    from tests.runtime.cuda_fake.device import FakeStream

    return _patched(FakeStream, "wait_event", lambda stream, event: None)


def without_pair_end() -> Any:
    """The main stream does not wait for the one beside it at the end of a pair."""
    from synth.runtime.execution.program.pair_streams import PairStreams

    running = PairStreams.running

    def unjoined(streams: Any, op: Any, run: Any) -> Any:
        streams._firsts = {op}
        return running(streams, op, run)

    return _patched(PairStreams, "running", unjoined)


def without_pinning() -> Any:
    """Copies to the host go to memory that is not pinned."""
    from synth.runtime.execution.transport.host import host_link

    def plain(num_bytes: int) -> Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8)

    return _patched(host_link, "host_memory", lambda device: plain)


def with_item() -> Any:
    """The host reads a number of what it sends."""
    from synth.runtime.execution.transport.nccl.channels import NcclChannels

    send = NcclChannels.send

    def read(channels: Any, tensors: Any, transfer: Any) -> Any:
        assert tensors[0].detach().sum().item() is not None
        return send(channels, tensors, transfer)

    return _patched(NcclChannels, "send", read)


def with_swapped_sends() -> Any:
    """The first two sends of rank 0 begin in the other order."""
    from synth.runtime.execution.transport.calls import AgreedChannels

    send = AgreedChannels.send
    late: list[Callable[[], Any]] = []

    class Late:
        """A send that begins after the next one, or when it is waited for."""

        def __init__(self, begin: Callable[[], Any]) -> None:
            self.begin, self.pending = begin, None

        def start(self) -> Any:
            self.pending = self.pending or self.begin()
            return self.pending

        def wait(self) -> Any:
            return self.start().wait()

    def swapped(channels: Any, tensors: Any, transfer: Any) -> Any:
        if transfer.source == 0 and not late:
            pending = Late(lambda: send(channels, tensors, transfer))
            late.append(pending.start)
            return pending
        began = send(channels, tensors, transfer)
        if len(late) == 1:
            late.append(late[0]())
        return began

    return _patched(AgreedChannels, "send", swapped)


MUTATIONS: dict[str, Callable[[], Any]] = {
    each.__name__: each
    for each in (
        without_arrival,
        without_sent,
        without_made,
        without_second_wait,
        without_copied,
        without_lane_order,
        without_begin,
        without_pair_end,
        without_pinning,
        with_item,
        with_swapped_sends,
    )
}


def run(
    rank: int, size: int, family: str, index: int = 1, broken: str = "", sets_device: bool = True
) -> Ran:
    """Run some steps of a family on the fake device, with a part of the runtime broken or not."""
    with MUTATIONS[broken]() if broken else nullcontext():
        return _ran(rank, size, family, index, sets_device=sets_device)


def _ran(
    rank: int, size: int, family: str, index: int, *, sets_device: bool, num_replicas: int = 1
) -> Ran:
    from synth.runtime.batch import Batch
    from synth.runtime.pipeline import Pipeline
    from tests.runtime.cuda_fake.checker import check
    from tests.runtime.cuda_fake.device import CudaFake
    from tests.runtime.cuda_fake.trace import Work

    own, peers = _groups(rank, size, num_replicas)
    place, count = rank % (size // num_replicas), size // num_replicas
    schedule = schedule_of(family, count)
    fake = CudaFake(index)
    with fake.active(sets_device=sets_device):
        stages = build_stages(schedule.placement.num_stages)
        held = sorted({stage for stage, _ in schedule.placement.held[place]})
        on_host = schedule.weights is not None and schedule.weights.weights == "host"
        for stage in held:
            stages[stage].to(torch.device("cpu") if on_host else fake.device)
        pipeline = Pipeline(
            schedule,
            {stage: [stages[stage]] for stage in held},
            group=own,
            data_parallel=peers,
            device=fake.device,
        )
        inputs, targets = build_batch(schedule.num_micro_batches)
        batch = Batch([x.to(fake.device) for x in inputs], [y.to(fake.device) for y in targets])
        made = []
        for _ in range(STEPS):
            for module in pipeline.updated.values():
                module.zero_grad()
            pipeline.step(batch)
            made.append(len(fake.recorder.streams))
        torch.cuda.synchronize(fake.device)
        pipeline.close()
    trace = fake.recorder.trace
    return Ran(
        check(trace),
        {made.name: made.calls for made in fake.nccl.made},
        sum(isinstance(entry, Work) for entry in trace),
        made[-1] - made[0],
        _are_equal(schedule, stages, held) if schedule.weights is None else True,
    )


def _groups(rank: int, size: int, num_replicas: int) -> tuple[Any, Any]:
    if num_replicas == 1:
        return None, None
    length = size // num_replicas
    replicas = [list(range(first, first + length)) for first in range(0, size, length)]
    rows = [dist.new_group(ranks) for ranks in replicas]
    columns = [dist.new_group(list(ranks)) for ranks in zip(*replicas, strict=True)]
    return rows[rank // length], columns[rank % length]


def _are_equal(schedule: Any, stages: list[nn.Module], held: list[int]) -> bool:
    wanted = plain_autograd(len(stages), schedule.num_micro_batches)
    return all(
        torch.allclose(gradient_of(parameter), gradient, rtol=1e-5, atol=1e-6)
        for stage in held
        for parameter, gradient in zip(stages[stage].parameters(), wanted[stage], strict=True)
    )


def order_faults(ran: list[Ran]) -> list[str]:
    """Compare the calls of the ranks of each communicator."""
    by_name: dict[str, list[list[str]]] = defaultdict(list)
    for each in ran:
        for name, calls in each.calls.items():
            by_name[name].append(calls)
    assert all(len(calls) > 1 for calls in by_name.values())
    return [
        fault
        for name, (first, *others) in by_name.items()
        for other in others
        for fault in check_order({name: first}, {name: other})
    ]


# At its last STEP a rank that updates passed weights looks which parameters had no gradient.
LAST_STEP = "the host waits in a step: aten::_to_copy"


def unexpected(ran: list[Ran], family: str) -> list[str]:
    """The faults of all ranks, without the one wait of the host that the runtime documents."""
    faults = [fault for each in ran for fault in each.faults]
    passes = schedule_of(family, len(ran)).weights is not None
    return [fault for fault in faults if not (passes and fault == LAST_STEP)]


FAMILIES = {
    "1f1b": 4,
    "zb-h1": 4,
    "zb-v": 2,
    "chimera": 4,
    "weipipe": 4,
    "zero3:1": 2,
    "pipeoffload:2,full": 2,
    "bpipe": 4,
    "dualpipe:overlap": 2,
    "dualpipe-v:overlap": 2,
    "interleaved:2,overlap": 2,
}
QUICK = ("1f1b", "chimera", "pipeoffload:2,full", "dualpipe-v:overlap")


SLOW = [pytest.param(family, marks=pytest.mark.slow) for family in FAMILIES if family not in QUICK]


@pytest.mark.parametrize("family", [*QUICK, *SLOW])
def test_every_use_waits_for_what_it_needs(pool: Any, family: str) -> None:
    ran = pool.run(run, FAMILIES[family], family)
    assert unexpected(ran, family) == []
    assert order_faults(ran) == []
    assert all(each.num_works > 50 and each.is_equal for each in ran)
    assert [each.new_streams for each in ran] == [0] * len(ran)


def run_replicas(rank: int, size: int) -> Ran:
    """Run two pipelines side by side."""
    return _ran(rank, size, "1f1b", 1, sets_device=True, num_replicas=2)


def test_gradients_of_pipelines_side_by_side_wait_for_backwards(pool: Any) -> None:
    ran = pool.run(run_replicas, 4)
    assert [each.faults for each in ran] == [[]] * 4
    assert order_faults(ran) == []
    assert all(each.is_equal for each in ran)  # their batches are the same


@pytest.mark.parametrize("family", ["zb-v", "weipipe"])
def test_ranks_as_threads_of_one_device_wait_for_each_other(family: str) -> None:
    from synth.runtime.batch import Batch
    from synth.runtime.pipeline import Pipeline
    from tests.runtime.cuda_fake.checker import check
    from tests.runtime.cuda_fake.device import CudaFake

    schedule, fake = schedule_of(family, 2), CudaFake(1)

    def train(group: InProcessGroup) -> None:
        torch.cuda.set_device(fake.device)
        stages = build_stages(schedule.placement.num_stages)
        held = {n: [stages[n].to(fake.device)] for n, _ in schedule.placement.held[group.rank]}
        pipeline = Pipeline(schedule, held, group=group, device=fake.device)
        inputs, targets = build_batch(schedule.num_micro_batches)
        pipeline.step(
            Batch([x.to(fake.device) for x in inputs], [y.to(fake.device) for y in targets])
        )

    with fake.active():
        run_ranks(2, train)
    assert set(check(fake.recorder.trace)) <= {LAST_STEP}


@pytest.mark.parametrize("family", ["weipipe", "pipeoffload:2,full"])
def test_the_device_of_the_pipeline_need_not_be_the_current_one(pool: Any, family: str) -> None:
    ran = pool.run(run, FAMILIES[family], family, 1, "", False)
    assert unexpected(ran, family) == []


@pytest.mark.parametrize(
    ("broken", "family", "found"),
    [
        ("without_arrival", "1f1b", r"reads what transfer of act.* writes"),
        ("without_sent", "1f1b", "is freed .* while transfer of"),
        ("without_made", "weipipe", r"transfer of .* reads what aten::"),
        ("without_second_wait", "weipipe", r"aten::.* reads what transfer of weights"),
        ("without_copied", "pipeoffload:2,full", "is freed .* while aten::copy_"),
        ("without_lane_order", "pipeoffload:2,full", "aten::copy_ on stream"),
        ("without_begin", "dualpipe-v:overlap", r"aten::.* on stream"),
        ("without_pair_end", "dualpipe-v:overlap", r"aten::.* on stream"),
        ("without_pinning", "pipeoffload:2,full", "the host waits in a step: aten::copy_"),
        ("with_item", "1f1b", "the host waits in a step: aten::_local_scalar_dense"),
    ],
)
def test_a_missing_wait_and_a_wait_of_the_host_are_found(
    pool: Any, broken: str, family: str, found: str
) -> None:
    ran = pool.run(run, FAMILIES[family], family, 1, broken)
    faults = [fault for each in ran for fault in each.faults]
    assert any(re.search(found, fault) for fault in faults), faults[:5]


def test_sends_in_another_order_than_their_receives_are_found(pool: Any) -> None:
    ran = pool.run(run, 2, "1f1b", 1, "with_swapped_sends")
    faults = order_faults(ran)
    assert [fault.partition(":")[0] for fault in faults] == ["nccl-0-1-link of [0, 1]"] * 2
